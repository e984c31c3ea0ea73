"""Asks for /livez again and again, from a process of its own as a kubelet does: within the load's
process the answers would wait for the load. Prints the seconds that each took once its standard
input ends.

    python tests/bench/server/probe.py http://127.0.0.1:8000
"""

import http.client
import json
import select
import sys
import time

PERIOD_S = 0.02


def probe(url: str) -> list[float]:
    seconds = []
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    while not select.select([sys.stdin], [], [], PERIOD_S)[0]:
        began_s = time.perf_counter()
        connection.request("GET", "/livez")
        answer = connection.getresponse()
        answer.read()
        seconds.append(time.perf_counter() - began_s)
        assert answer.status == 200, answer.status
    connection.close()
    return seconds


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1])))

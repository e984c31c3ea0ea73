"""How many tokens a second one API process streams when tokens cost nothing, client included.

    python -m tests.bench.server.throughput [--clients 256] [--tokens 400] [--step-ms 15]

The server runs in a process of its own over a runner that only emits tokens; the load is that of
`octavo bench serve` in this one. With --step-ms 0 tokens come as fast as they are taken, and a
client's chunks grow; a step of 15 ms offers 17,067 tokens/s to 256 clients, one chunk a token as
long as the server keeps up. Prints figures and one line of JSON. With --profile FILE the server's
event loop is profiled and its dearest functions are printed.
"""

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from tests.bench.stream_overhead import ClockRunner
from tests.engine.byte_tokenizer import make_tokenizer
from tests.engine.test_server_life import free_port

from octavo_engine.bench.http_stream import HttpClient
from octavo_engine.bench.load import Target, closed_loop
from octavo_engine.bench.report import summary
from octavo_engine.bench.workload import synthetic

MODEL = "nothing"
GOAL_TOKENS_PER_S = 15_000
START_LIMIT_S = 120


def serve(port: int, num_clients: int, step_s: float, profile: Path | None) -> None:
    """The child's side."""
    from octavo_engine.config import SchedulerSettings
    from octavo_engine.core.in_process import InProcessEngine
    from octavo_engine.server.loop import run_on_fast_loop
    from octavo_engine.server.run import serve as serve_until_stopped
    from octavo_engine.server.settings import ServerSettings
    from octavo_engine.server.state import Loaded, ServerState

    def load(state: ServerState) -> Loaded:
        sys.setswitchinterval(0.0005)  # as `build_engine` does
        engine = InProcessEngine(ClockRunner(num_clients, step_s), SchedulerSettings())
        return Loaded(engine, make_tokenizer())

    settings = ServerSettings(
        host="127.0.0.1", port=port, served_model_names=(MODEL,), drain_grace_s=0.0
    )
    profiler = cProfile.Profile() if profile is not None else None
    if profiler is not None:
        profiler.enable()
    run_on_fast_loop(serve_until_stopped(settings, load))
    if profiler is not None:
        profiler.disable()
        profiler.dump_stats(str(profile))


async def measure(url: str, pid: int, num_clients: int, num_tokens: int) -> dict[str, Any]:
    client = HttpClient(url + "/v1", {})
    target = Target(model=MODEL, is_chat=True)
    await closed_loop(
        client, target, synthetic(num_clients, 5, 20, None, 0), num_clients=num_clients, seed=1
    )
    plan = synthetic(num_clients, 5, num_tokens, None, 0)
    begin_s, server_cpu_s, own_cpu_s = time.perf_counter(), cpu_s(pid), time.process_time()
    samples = await closed_loop(client, target, plan, num_clients=num_clients, seed=0)
    figures = summary(samples, time.perf_counter() - begin_s)
    for name, spent_s in (
        ("server", cpu_s(pid) - server_cpu_s),
        ("client", time.process_time() - own_cpu_s),
    ):
        figures[f"{name}_cpu_us_per_token"] = spent_s / figures["output_tokens"] * 1e6
    num_chunks = sum(len(sample.gaps_s) + 1 for sample in samples)
    figures["tokens_per_chunk"] = figures["output_tokens"] / num_chunks
    client.close()
    return figures


def cpu_s(pid: int) -> float:
    """Of all threads of a process, in its own code and in the system's."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, "the server has ended"
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"{url} is not ready after {START_LIMIT_S} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--step-ms", type=float, default=15.0)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve is not None:
        serve(asked.serve, asked.clients, asked.step_ms / 1000, asked.profile)
        return
    port = free_port()
    command = [sys.executable, "-m", "tests.bench.server.throughput", "--serve", str(port)]
    command += ["--clients", str(asked.clients), "--step-ms", str(asked.step_ms)]
    if asked.profile is not None:
        command += ["--profile", str(asked.profile)]
    process = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(url, process)
        figures = asyncio.run(measure(url, process.pid, asked.clients, asked.tokens))
    finally:
        process.terminate()
        process.wait()
    report(figures, asked.clients)
    if asked.profile is not None:
        pstats.Stats(str(asked.profile)).sort_stats("tottime").print_stats(25)
    sys.exit(1 if figures["failed"] else 0)


def report(figures: dict[str, Any], num_clients: int) -> None:
    rate = figures["output_tokens_per_s"]
    itl = figures["itl_ms"]
    print(f"{num_clients} clients on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{rate:,.0f} tokens/s (goal {GOAL_TOKENS_PER_S:,}), {figures['failed']} failed")
    print(f"{figures['tokens_per_chunk']:.2f} tokens a chunk, ", end="")
    print(f"between chunks p50 {itl['p50']:.1f} ms, p99 {itl['p99']:.1f} ms")
    server, client = figures["server_cpu_us_per_token"], figures["client_cpu_us_per_token"]
    print(f"processor time a token: server {server:.0f} us, client {client:.0f} us; ", end="")
    print(f"so {1e6 / server:,.0f} tokens/s from a server that has a core to itself")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

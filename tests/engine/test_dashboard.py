"""The dashboard as a user sees it: every query of every panel has data after a real run."""

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from tests.engine.test_server_life import free_port
from tests.engine.tiny_server import NAME, NO_END, tiny_server
from tests.tools.prometheus import Prometheus, scraping

CHARTS = Path(__file__).parents[2] / "charts"
DASHBOARD = json.loads((CHARTS / "octavo" / "dashboards" / "service.json").read_text())
LIMIT_S = 60


def queries() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$model", ".*").replace("$__rate_interval", "5s")
            yield panel["title"], expression


def test_dashboard_is_up_to_date() -> None:
    command = [sys.executable, str(CHARTS / "build_dashboard.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_panels_show_what_an_operator_asks_for() -> None:
    shown = " ".join(expression for _, expression in queries())
    for name in (
        *("http_requests_total", "time_to_first_token", "inter_token_latency", "e2e_request"),
        *("generation_tokens_total", "num_requests_waiting", "num_requests_running"),
        *("kv_cache_usage_perc", "prefix_cache_hits", "num_preemptions", "count(vllm:num_req"),
    ):
        assert name in shown, name
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


async def test_every_query_has_data_from_a_real_prometheus(tmp_path: Path) -> None:
    async with tiny_server(tmp_path, max_num_seqs=2) as server:
        load = asyncio.ensure_future(keep_busy(server.http))
        try:
            targets = [server.target, server.target.replace("127.0.0.1", "localhost")]
            without_data, num_replicas = await asyncio.to_thread(watch, targets, tmp_path)
            assert not load.done(), load.exception()
        finally:
            load.cancel()
            await asyncio.wait({load})
    assert without_data == []
    assert num_replicas == [2.0]


def watch(targets: list[str], scratch: Path) -> tuple[list[tuple[str, str]], list[float]]:
    """The queries that had no data in the end, and how many replicas are shown; returns as soon as
    all have data. The one server under two names looks like two of them."""
    (replicas,) = [expression for _, expression in queries() if expression.startswith("count(")]
    with scraping(targets, free_port(), scratch) as prometheus:
        deadline_s = time.monotonic() + LIMIT_S
        left = list(queries())
        while time.monotonic() < deadline_s:
            time.sleep(0.5)
            left = [query for query in left if not has_data(prometheus, query[1])]
            if not left and prometheus.query(replicas) == [len(targets)]:
                break
        return left, prometheus.query(replicas)


def has_data(prometheus: Prometheus, expression: str) -> bool:
    return any(math.isfinite(value) for value in prometheus.query(expression))


async def keep_busy(http: httpx.AsyncClient) -> None:
    body = {"model": NAME, "prompt": "ab" * 40, "max_tokens": 30, **NO_END}
    while True:
        streams = [http.post("/v1/completions", json={**body, "stream": i > 0}) for i in range(3)]
        answers = await asyncio.gather(*streams)
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert (await http.post("/v1/completions", json={})).status_code == 400

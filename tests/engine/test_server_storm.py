"""The server over the real core with clients of whom some leave: nothing may stay behind."""

import asyncio
import random
from pathlib import Path

import httpx
from tests.bench.server.storm import run_storm
from tests.engine.byte_tokenizer import VOCAB_SIZE, make_tokenizer
from tests.engine.fake_runner import FakeRunner
from tests.engine.test_server_life import eventually, free_port, stop
from tests.engine.tiny_server import NAME, tiny_server

from octavo_engine.config import SchedulerSettings
from octavo_engine.core.in_process import InProcessEngine
from octavo_engine.server.run import serve
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.state import Loaded, ServerState

NUM_CLIENTS = 60
SHARE_LEAVING = 0.3
STEP_S = 0.002


async def run_client(http: httpx.AsyncClient, rng: random.Random, stream: bool) -> str:
    """One request of random shape; some leave after a while. Returns how it ended."""
    body = {
        "model": "m",
        "prompt": [rng.randrange(2, 97) for _ in range(rng.randrange(1, 60))],
        "max_tokens": rng.randrange(1, 60),
        "n": rng.choice([1, 1, 2]),
        "stop": rng.choice([[], ["a"], ["0", "xyz"]]),
        "stream": stream,
        "ignore_eos": True,
    }
    await asyncio.sleep(rng.random() * 0.3)
    leaves = rng.random() < SHARE_LEAVING
    if leaves:
        body |= {"max_tokens": 400, "stop": []}  # too long to end by itself in time
    request = asyncio.ensure_future(http.post("/v1/completions", json=body))
    if leaves:
        await asyncio.wait({request}, timeout=rng.random() * 0.1)
        if not request.done():
            request.cancel()
            await asyncio.wait({request})
            return "left"
    response = await request
    assert response.status_code == 200, response.text
    if stream:
        assert response.text.endswith("data: [DONE]\n\n")
    return "answered"


async def leave_after_the_first_piece(http: httpx.AsyncClient) -> None:
    """However slow the machine is, the engine has begun by then and has much to do."""
    body = {"model": "m", "prompt": [5, 6, 7], "max_tokens": 500, "stream": True}
    async with http.stream("POST", "/v1/completions", json={**body, "ignore_eos": True}) as answer:
        await anext(answer.aiter_lines())


async def test_clients_that_come_and_leave_at_random_leave_nothing_behind() -> None:
    # Steps take time: on a fast machine the long requests would end before their clients leave.
    runner = FakeRunner(
        num_blocks=40, max_num_seqs=8, vocab_size=VOCAB_SIZE, step_seconds=lambda batch: STEP_S
    )
    engine = InProcessEngine(runner, SchedulerSettings(max_queued_requests=500))
    states: list[ServerState] = []

    def load(state: ServerState) -> Loaded:
        states.append(state)
        return Loaded(engine, make_tokenizer())

    settings = ServerSettings(
        host="127.0.0.1", port=free_port(), served_model_names=("m",), drain_grace_s=0.0
    )
    server = asyncio.ensure_future(serve(settings, load))
    limits = httpx.Limits(max_connections=NUM_CLIENTS)
    url = f"http://127.0.0.1:{settings.port}"
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as http:
        await eventually(lambda: bool(states) and states[0].phase == "ready")
        endings = await asyncio.gather(
            *(run_client(http, random.Random(i), stream=i % 3 > 0) for i in range(NUM_CLIENTS))
        )
        await leave_after_the_first_piece(http)
        assert "answered" in endings
        assert "left" in endings
        await eventually(lambda: engine.stats().num_running == 0)
        stats = engine.stats()
        metrics = (await http.get("/metrics")).text
    assert (stats.num_waiting, stats.kv_blocks_used, stats.has_work) == (0, 0, False)
    assert stats.finished_total["abort"] > 0
    assert stats.finished_total.get("error", 0) == 0
    assert 'octavo:http_requests_in_flight{engine="0",model_name="m"} 0.0' in metrics
    stop()
    await asyncio.wait_for(server, 20)


async def test_a_storm_of_200_streams_with_clients_that_leave_leaves_nothing(
    tmp_path: Path,
) -> None:
    # With such pauses, a task that outlives its stream does not end while the test waits for it.
    async with tiny_server(tmp_path, max_num_seqs=16, stream_keep_alive_s=1000.0) as server:
        tasks = asyncio.all_tasks()
        storm = await run_storm(server.url, NAME, num_clients=200, num_tokens=60, seed=0)
        await eventually(lambda: asyncio.all_tasks() <= tasks)
    storm.print()
    assert storm.endings["answered"] + storm.endings["left"] == 200
    assert storm.endings["left"] > 10
    assert storm.endings["huge prompt: 400"] > 0
    assert len(storm.livez_s) > 0
    assert storm.lag["+Inf"] > 0
    assert set(storm.left_over.values()) == {0.0}

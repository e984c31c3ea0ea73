"""An engine of two ranks on a CPU: its answers, and its end when a rank fails."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.engine.gguf_files import EOS_ID, hf_weights, write_gguf
from tests.engine.server_process import ServerProcess, serving_process
from tests.engine.test_server_life import free_port

from octavo_engine.config import (
    CacheSettings,
    EngineConfig,
    ModelSettings,
    ParallelSettings,
    SchedulerSettings,
)
from octavo_engine.core.in_process import InProcessEngine, build_engine
from octavo_engine.errors import EngineDead
from octavo_engine.messages import (
    ENGINE_STOPPED,
    EngineClient,
    EngineRequest,
    PositionLogprobs,
    RequestDelta,
)
from octavo_engine.sampling_params import SamplingParams

NO_END = {EOS_ID: -100.0}
LIMIT_S = 8.0
"""Long enough for a busy machine."""
LOGPROB_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", hf_weights())


def config_of(model: Path, num_ranks: int) -> EngineConfig:
    return EngineConfig(
        model=ModelSettings(path=str(model), device="cpu", dtype="float32"),
        cache=CacheSettings(cpu_kv_cache_gib=0.05),
        scheduler=SchedulerSettings(max_num_seqs=4),
        parallel=ParallelSettings(tensor_parallel_size=num_ranks, rank_timeout_s=LIMIT_S),
    )


@pytest.fixture(scope="module")
def ranks_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "stderr"


@pytest.fixture(scope="module")
def shared(model: Path, ranks_log: Path) -> Iterator[InProcessEngine]:
    """Its rank writes what it has to say to `ranks_log`."""
    own_stderr = os.dup(2)
    with ranks_log.open("wb") as log:
        os.dup2(log.fileno(), 2)
        try:
            engine = build_engine(config_of(model, 2))
        finally:
            os.dup2(own_stderr, 2)
            os.close(own_stderr)
    yield engine
    engine.close_blocking()


def request(request_id: str, **fields: object) -> EngineRequest:
    values = {"max_tokens": 20, "temperature": 0.0, "logit_bias": NO_END} | fields
    params = SamplingParams(**values)  # type: ignore[arg-type]  # fields of several types
    return EngineRequest(request_id=request_id, prompt_token_ids=[5, 6, 7, 9], params=params)


async def read(engine: EngineClient, asked: EngineRequest) -> list[RequestDelta]:
    return [delta async for deltas in engine.submit(asked) for delta in deltas]


KINDS = {
    "greedy": {"logprobs": 3, "prompt_logprobs": 2},
    "drawn": {"temperature": 0.9, "top_p": 0.9, "seed": 4, "n": 2},
    "penalised": {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
}


async def test_two_ranks_answer_as_one(model: Path, shared: InProcessEngine) -> None:
    alone = build_engine(config_of(model, 1))
    for kind, fields in KINDS.items():
        expected, found = [await read(e, request(kind, **fields)) for e in (alone, shared)]
        assert tokens_of(found) == tokens_of(expected), kind
        for one, other in zip(logprobs_of(expected), logprobs_of(found), strict=True):
            assert one.token_id == other.token_id
            assert one.logprob == pytest.approx(other.logprob, abs=LOGPROB_TOLERANCE)
    await alone.close()


def tokens_of(deltas: list[RequestDelta]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for delta in deltas:
        found.setdefault(delta.index, []).extend(delta.token_ids)
    return found


def logprobs_of(deltas: list[RequestDelta]) -> list[msgspec.Struct]:
    positions: list[PositionLogprobs | None] = []
    for delta in deltas:
        positions += [*(delta.prompt_logprobs or []), *(delta.logprobs or [])]
    return [token for at in positions if at is not None for token in (at.chosen, *at.top)]


def rank_pids(parent: int) -> list[int]:
    """Of the rank processes that `parent` has started."""
    tasks = Path(f"/proc/{parent}/task").iterdir()
    pids = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return [p for p in pids if b"rank_process" in Path(f"/proc/{p}/cmdline").read_bytes()]


async def test_a_stopped_rank_ends_the_engine_with_its_stack_in_the_log(
    shared: InProcessEngine, ranks_log: Path
) -> None:
    """The last test of this engine."""
    (rank,) = rank_pids(os.getpid())
    told: list[str] = []
    shared._runner.on_failure(told.append)
    os.kill(rank, signal.SIGSTOP)
    last = (await read(shared, request("s", max_tokens=200)))[-1]
    assert (last.finish_reason, last.error) == ("error", ENGINE_STOPPED)
    assert shared.death is not None
    assert "rank 1 was silent" in shared.death or "rank 1 did not end step" in shared.death
    await until(lambda: told)
    assert told == [shared.death]
    with pytest.raises(EngineDead, match="rank 1"):
        shared.submit(request("t"))
    await until(lambda: not rank_pids(os.getpid()))
    assert "rank_process.py" in ranks_log.read_text()


async def until(condition: object) -> None:
    assert callable(condition)
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)


BODY = {"model": "tiny", "prompt": "ab", "max_tokens": 240, "logit_bias": {str(EOS_ID): -100}}


def test_a_killed_rank_ends_all_requests_and_the_server(model: Path) -> None:
    options = ["--core-process", "--dtype", "float32"]
    options += ["--tensor-parallel-size", "2", "--rank-timeout", "30"]
    with serving_process(model, free_port(), *options) as server:
        server.wait_ready()
        (rank,) = rank_pids(server.core_pid())
        url = f"{server.url}/v1/completions"
        assert httpx.post(url, json=BODY | {"max_tokens": 4}, timeout=60).status_code == 200
        os.kill(rank, signal.SIGSTOP)  # so that the requests are certainly under way
        answers: dict[bool, httpx.Response] = {}

        def ask(stream: bool) -> None:
            answers[stream] = httpx.post(url, json={**BODY, "stream": stream}, timeout=60)

        clients = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False)]
        for client in clients:
            client.start()
        wait_in_flight(server, 2)
        os.kill(rank, signal.SIGKILL)
        for client in clients:
            client.join(60)
        assert answers[False].status_code == 503
        assert answers[False].json()["error"]["code"] == "engine_dead"
        assert '"code":"engine_dead"' in answers[True].text
        assert server.exit_code() == 1, server.log
        assert f"rank 1 (process {rank}) has ended by signal 9" in server.log


def wait_in_flight(server: ServerProcess, count: int) -> None:
    gauge = "octavo:http_requests_in_flight"
    deadline_s = time.monotonic() + 30
    while True:
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        if any(line.startswith(gauge) and line.endswith(f" {count}.0") for line in lines):
            return
        assert time.monotonic() < deadline_s, lines
        time.sleep(0.05)

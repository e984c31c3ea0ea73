"""The core in a process of its own: the same answers, and what happens when it stops or dies."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.engine.gguf_files import EOS_ID, hf_weights, write_gguf
from tests.engine.server_process import ServerProcess, serving_process
from tests.engine.test_server_life import free_port

from octavo_engine.cli.serve import load_model
from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from octavo_engine.core import process_client
from octavo_engine.core.in_process import build_engine
from octavo_engine.core.process_client import ProcessEngine
from octavo_engine.errors import CheckpointError, EngineDead, PromptTooLong, QueueFull
from octavo_engine.logs import LogFormat
from octavo_engine.messages import ENGINE_STOPPED, EngineClient, EngineRequest, RequestDelta
from octavo_engine.progress import Stage, silent
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.state import ServerState
from octavo_engine.text import tokenizer

NO_END = {EOS_ID: -100.0}
STALL_LIMIT_S = 1.0


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    model = write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", hf_weights())
    return EngineConfig(
        model=ModelSettings(path=str(model), device="cpu", dtype="float32"),
        cache=CacheSettings(cpu_kv_cache_gib=0.05),
        scheduler=SchedulerSettings(max_num_seqs=4, max_queued_requests=8),
    )


@pytest.fixture(scope="module")
def seen() -> list[tuple[Stage, float]]:
    """What the start of the shared engine has reported."""
    return []


@pytest.fixture(scope="module")
def shared(config: EngineConfig, seen: list[tuple[Stage, float]]) -> Iterator[ProcessEngine]:
    """One engine for the tests that leave it alive."""
    engine = ProcessEngine(config, "json")
    engine.load(lambda stage, share: seen.append((stage, share)))
    yield engine
    engine.close_blocking()


def request(request_id: str, num_tokens: int = 20, **fields: object) -> EngineRequest:
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, logit_bias=NO_END, **fields)  # type: ignore[arg-type]  # fields of several types
    return EngineRequest(request_id=request_id, prompt_token_ids=[5, 6, 7], params=params)


async def read(engine: EngineClient, asked: EngineRequest) -> list[RequestDelta]:
    """All but the times, which differ from run to run."""
    deltas = [delta async for deltas in engine.submit(asked) for delta in deltas]
    return [msgspec.structs.replace(delta, queue_s=None) for delta in deltas]


async def test_answers_are_those_of_the_core_in_one_process(
    config: EngineConfig, shared: ProcessEngine
) -> None:
    asked = request("a", n=2, logprobs=2)
    apart = await read(shared, asked)
    together = build_engine(config)
    expected = await read(together, asked)
    await together.close()
    assert apart == expected
    assert shared.info == together.info


async def test_a_wrong_request_is_refused_at_the_door(shared: ProcessEngine) -> None:
    too_long = EngineRequest(
        request_id="long", prompt_token_ids=[5] * 100_000, params=SamplingParams()
    )
    with pytest.raises(PromptTooLong, match="100000"):
        shared.submit(too_long)


@contextmanager
def stopped(engine: ProcessEngine) -> Iterator[None]:
    """The core's process stands still, so that it finds all that is sent meanwhile at once."""
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(engine.pid, signal.SIGCONT)


async def test_queue_is_bounded_and_aborts_make_room(shared: ProcessEngine) -> None:
    with stopped(shared):
        streams = [shared.submit(request(f"q{number}", 200)) for number in range(8)]
        with pytest.raises(QueueFull):
            shared.submit(request("q8", 200))
        for number in range(8):
            shared.abort(f"q{number}")
    endings = [[d.finish_reason async for ds in stream for d in ds][-1] for stream in streams]
    assert endings == ["abort"] * 8
    assert [d.finish_reason for d in await read(shared, request("after", 1))] == ["length"]


async def test_stop_string_ends_a_sequence(shared: ProcessEngine) -> None:
    with stopped(shared):
        stream = shared.submit(request("s", 240))
        shared.finish("s", 0, "END")
    last = [delta async for deltas in stream for delta in deltas][-1]
    assert (last.finish_reason, last.stop_reason) == ("stop", "END")


async def test_numbers_come_to_rest(shared: ProcessEngine) -> None:
    await read(shared, request("n", 3))
    deadline_s = time.monotonic() + 30
    while shared.stats().has_work and time.monotonic() < deadline_s:
        await asyncio.sleep(0.05)
    stats = shared.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used) == (0, 0, 0)
    assert stats.last_step_age_s == 0.0
    assert stats.generation_tokens_total > 0


def test_load_reports_its_stages(shared: ProcessEngine, seen: list[tuple[Stage, float]]) -> None:
    assert seen[-1][0] == "memory"
    assert ("weights", 1.0) in seen
    weights = [share for stage, share in seen if stage == "weights"]
    assert weights == sorted(weights)


def test_broken_model_is_the_same_error_as_in_one_process(tmp_path: Path) -> None:
    broken = EngineConfig(model=ModelSettings(path=str(tmp_path / "missing"), device="cpu"))
    engine = ProcessEngine(broken, "json")
    with pytest.raises(CheckpointError, match="missing"):
        engine.load(silent)
    with pytest.raises(ProcessLookupError):
        os.kill(engine.pid, 0)


def test_the_core_loads_beside_the_tokenizer_and_ends_when_that_fails(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    class Noted(ProcessEngine):
        def __init__(self, config: EngineConfig, log_format: LogFormat) -> None:
            super().__init__(config, log_format)
            made.append(self.pid)

    def load_tokenizer(path: str) -> None:
        os.kill(made[0], 0)  # it is there
        raise CheckpointError("no tokenizer")

    monkeypatch.setattr(process_client, "ProcessEngine", Noted)
    monkeypatch.setattr(tokenizer, "load_tokenizer", load_tokenizer)
    state = ServerState(ServerSettings(served_model_names=("a",), core_process=True))
    with pytest.raises(CheckpointError, match="no tokenizer"):
        load_model(config, state)
    with pytest.raises(ProcessLookupError):
        os.kill(made[0], 0)


async def test_stopped_core_shows_in_the_ages_and_a_killed_one_ends_its_streams(
    config: EngineConfig,
) -> None:
    engine = ProcessEngine(config, "json")
    engine.load(silent)
    stream = engine.submit(request("a", 240))
    await anext(stream)
    os.kill(engine.pid, signal.SIGSTOP)
    await asyncio.sleep(STALL_LIMIT_S)
    stats = engine.stats()
    assert stats.has_work
    assert min(stats.silence_s, stats.last_step_age_s) > STALL_LIMIT_S / 2
    os.kill(engine.pid, signal.SIGKILL)
    last = [delta async for deltas in stream for delta in deltas][-1]
    assert (last.finish_reason, last.error) == ("error", ENGINE_STOPPED)
    assert engine.death is not None
    assert "signal 9" in engine.death
    with pytest.raises(EngineDead, match="signal 9"):
        engine.submit(request("b"))
    engine.abort("a")  # nobody is there to hear it, and nothing waits for them
    await engine.close()


def test_core_ends_when_its_server_is_gone(tmp_path: Path) -> None:
    addresses = [f"ipc://{tmp_path / name}" for name in ("commands", "reports")]
    command = [sys.executable, "-m", "octavo_engine.core.core_process", *addresses]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 1
    assert process.stderr is not None
    process.stderr.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_gguf(tmp_path_factory.mktemp("served") / "tiny.gguf", hf_weights())
    options = ["--core-process", "--stall-limit-seconds", str(STALL_LIMIT_S)]
    with serving_process(model, free_port(), *options) as running:
        running.wait_ready()
        yield running


BODY = {"model": "tiny", "prompt": "ab", "max_tokens": 240, "logit_bias": {str(EOS_ID): -100}}


def test_probes_fail_while_the_core_is_stopped_and_recover(server: ServerProcess) -> None:
    os.kill(server.core_pid(), signal.SIGSTOP)
    server.wait_status("/livez", 503)
    server.wait_status("/readyz", 503)
    assert "said nothing" in httpx.get(f"{server.url}/livez").json()["reason"]
    os.kill(server.core_pid(), signal.SIGCONT)
    server.wait_status("/livez", 200)
    answer = httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=60)
    assert answer.status_code == 200


def test_killed_core_is_a_503_and_ends_the_server(server: ServerProcess) -> None:
    """The last test of this server. No client hangs: both requests in flight get their end."""
    core = server.core_pid()
    address = Path(f"/proc/{core}/cmdline").read_bytes().split(b"\0")[-2].decode()
    folder = Path(address.removeprefix("ipc://")).parent
    assert folder.is_dir()
    os.kill(core, signal.SIGSTOP)  # so that the requests are certainly under way
    answers: dict[bool, httpx.Response] = {}

    def ask(stream: bool) -> None:
        url, body = f"{server.url}/v1/completions", {**BODY, "stream": stream}
        answers[stream] = httpx.post(url, json=body, timeout=60)

    clients = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False)]
    for client in clients:
        client.start()
    gauge = "octavo:http_requests_in_flight"
    deadline_s = time.monotonic() + 30
    while f"{gauge}{{" not in (text := httpx.get(f"{server.url}/metrics").text) or not any(
        line.startswith(gauge) and line.endswith(" 2.0") for line in text.splitlines()
    ):
        assert time.monotonic() < deadline_s, text
        time.sleep(0.05)
    os.kill(core, signal.SIGKILL)
    for client in clients:
        client.join(60)
    assert answers[False].status_code == 503
    assert answers[False].json()["error"]["code"] == "engine_dead"
    assert '"code":"engine_dead"' in answers[True].text
    assert server.exit_code() == 1, server.log
    assert "signal 9" in server.log
    assert not folder.exists()

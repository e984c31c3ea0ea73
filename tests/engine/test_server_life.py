"""A server process's life over real sockets and real signals: load, serve, drain, disconnects."""

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from structlog.testing import CapturingLogger
from tests.engine.byte_tokenizer import make_tokenizer
from tests.engine.echo_engine import EchoEngine, always
from tests.engine.server_client import MODEL

from octavo_engine.errors import CheckpointError, EngineDead, EngineStalled
from octavo_engine.server.run import serve
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.state import Loaded, ServerState

BODY = {"model": MODEL, "prompt": "hi", "max_tokens": 50}
WAIT_LIMIT_S = 60
"""For what takes milliseconds, on a machine with much else to do."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """A server run as its own task, and a client of it."""

    def __init__(self, engine: EchoEngine, task: "asyncio.Task[None]", http: httpx.AsyncClient):
        self.engine = engine
        self.task = task
        self.http = http

    async def until_status(self, path: str, status: int) -> httpx.Response:
        deadline_s = time.monotonic() + WAIT_LIMIT_S
        while time.monotonic() < deadline_s:
            try:
                response = await self.http.get(path)
                if response.status_code == status:
                    return response
            except httpx.ConnectError:
                pass
            await asyncio.sleep(0.01)
        raise AssertionError(f"{path} never answered {status}")

    async def ended(self) -> None:
        await asyncio.wait_for(self.task, WAIT_LIMIT_S)


@asynccontextmanager
async def process(
    engine: EchoEngine, load: Any = None, port: int | None = None, **settings: Any
) -> AsyncIterator[Process]:
    port = port or free_port()
    values = {"drain_s": 20.0, "drain_grace_s": 0.0} | settings
    server_settings = ServerSettings(
        host="127.0.0.1", port=port, served_model_names=(MODEL,), **values
    )
    task = asyncio.ensure_future(serve(server_settings, load or loader(engine)))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        try:
            yield Process(engine, task, http)
        finally:
            if not task.done():
                stop()
                stop()
                await asyncio.wait({task}, timeout=10)


def loader(engine: EchoEngine) -> Any:
    tokenizer = make_tokenizer()

    def load(state: ServerState) -> Loaded:
        return Loaded(engine, tokenizer)

    return load


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def eventually(condition: Any) -> None:
    deadline_s = time.monotonic() + WAIT_LIMIT_S
    while time.monotonic() < deadline_s:
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition never came true")


async def read_chunks(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line async for line in response.aiter_lines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_port_listens_while_the_model_loads() -> None:
    may_load = threading.Event()
    engine = EchoEngine(always("x"))
    finish_load = loader(engine)

    def load(state: ServerState) -> Loaded:
        may_load.wait()
        return finish_load(state)  # type: ignore[no-any-return]  # of the function that it wraps

    async with process(engine, load) as server:
        loading = await server.until_status("/readyz", 503)
        assert loading.json()["phase"] == "loading"
        may_load.set()
        await server.until_status("/readyz", 200)


async def test_a_log_line_tells_the_seconds_of_each_stage_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr("octavo_engine.server.run.log", log)
    engine = EchoEngine(always("x"))
    finish_load = loader(engine)

    def load(state: ServerState) -> Loaded:
        state.startup.report("weights", 0.0, 5.0)
        state.startup.report("graphs", 0.0, 7.5)
        return finish_load(state)  # type: ignore[no-any-return]  # of the function that it wraps

    async with process(engine, load) as server:
        await server.until_status("/readyz", 200)
    (ready,) = (call for call in log.calls if call.args == ("ready",))
    assert ready.kwargs["stages"]["weights"] == 2.5
    assert ready.kwargs["stages"].keys() == {"weights", "graphs"}


async def test_failed_load_ends_the_process_with_its_error() -> None:
    def load(state: ServerState) -> Loaded:
        raise CheckpointError("model.safetensors: tensor 'x' is missing")

    async with process(EchoEngine(always("x")), load) as server:
        with pytest.raises(CheckpointError, match="tensor 'x'"):
            await server.ended()


async def test_a_stalled_engine_is_not_waited_for_and_says_so() -> None:
    engine = EchoEngine(always("x"))
    async with process(engine, stall_limit_s=60.0, drain_s=600.0) as server:
        await server.until_status("/readyz", 200)
        engine.num_running, engine.last_step_age_s = 1, 61.0
        stop()
        with pytest.raises(EngineStalled, match="no step was made for 61 s"):
            await server.ended()


async def test_signal_while_loading_ends_at_once() -> None:
    never = threading.Event()

    def load(state: ServerState) -> Loaded:
        never.wait(30)
        raise AssertionError("not reached")

    async with process(EchoEngine(always("x")), load) as server:
        await server.until_status("/readyz", 503)
        stop()
        await server.ended()
        never.set()


async def test_port_in_use_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with process(EchoEngine(always("x")), port=port) as server:
            with pytest.raises(OSError, match=str(port)):
                await server.ended()


async def test_running_stream_finishes_after_the_signal() -> None:
    engine = EchoEngine(always("hello"))
    engine.gate.clear()
    async with process(engine) as server:
        await server.until_status("/readyz", 200)
        async with server.http.stream(
            "POST", "/v1/completions", json={**BODY, "stream": True}
        ) as response:
            stop()
            await server.until_status("/readyz", 503)
            assert not server.task.done()
            engine.gate.set()
            chunks = await read_chunks(response)
        await server.ended()
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hello"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert engine.aborted == []


async def test_new_work_is_taken_in_the_grace_period_and_refused_after_it() -> None:
    engine = EchoEngine(always("hello"))
    async with process(engine, drain_grace_s=2.0) as server:
        await server.until_status("/readyz", 200)
        stop()
        leaving = await server.until_status("/readyz", 503)
        assert leaving.json()["phase"] == "leaving"
        assert (await server.http.post("/v1/completions", json=BODY)).status_code == 200
        engine.gate.clear()
        holding = asyncio.ensure_future(server.http.post("/v1/completions", json=BODY))
        while (await server.http.get("/readyz")).json()["phase"] == "leaving":
            await asyncio.sleep(0.05)
        refused = await server.http.post("/v1/completions", json=BODY)
        engine.gate.set()
        assert (await holding).status_code == 200
        await server.ended()
    assert refused.status_code == 503
    assert "retry-after" in refused.headers


async def test_drain_deadline_ends_streams_with_the_reason_abort() -> None:
    engine = EchoEngine(always("hello"))
    engine.gate.clear()
    async with process(engine, drain_s=0.3) as server:
        await server.until_status("/readyz", 200)
        async with server.http.stream(
            "POST", "/v1/completions", json={**BODY, "stream": True}
        ) as response:
            stop()
            chunks = await read_chunks(response)
        await server.ended()
    assert chunks[-1]["choices"][0]["finish_reason"] == "abort"


async def test_second_signal_hastens() -> None:
    engine = EchoEngine(always("hello"))
    engine.gate.clear()
    async with process(engine, drain_s=60.0, drain_grace_s=60.0) as server:
        await server.until_status("/readyz", 200)
        answer = asyncio.ensure_future(server.http.post("/v1/completions", json=BODY))
        await eventually(lambda: engine.num_running == 1)
        stop()
        await server.until_status("/readyz", 503)
        stop()
        assert (await answer).json()["choices"][0]["finish_reason"] == "abort"
        await server.ended()


async def test_engine_that_dies_ends_the_process_with_its_words() -> None:
    engine = EchoEngine(always("x"))
    async with process(engine) as server:
        await server.until_status("/readyz", 200)
        engine.death = "step 7 raised"
        with pytest.raises(EngineDead, match="step 7 raised"):
            await server.ended()


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_ends_its_request(stream: bool) -> None:
    engine = EchoEngine(always("x" * 50))
    engine.gate.clear()
    async with process(engine) as server:
        await server.until_status("/readyz", 200)
        async with httpx.AsyncClient(base_url=server.http.base_url) as leaving:
            request = asyncio.ensure_future(
                leaving.post("/v1/completions", json={**BODY, "stream": stream})
            )
            await eventually(lambda: engine.num_running == 1)
            request.cancel()
        await eventually(lambda: engine.aborted == [engine.requests[0].request_id])
        metrics = (await server.http.get("/metrics")).text
    assert 'octavo:client_disconnects_total{engine="0",model_name="echo"} 1.0' in metrics
    assert 'octavo:http_requests_in_flight{engine="0",model_name="echo"} 0.0' in metrics


async def test_client_that_leaves_between_two_chunks_ends_its_request() -> None:
    engine = EchoEngine(always("x" * 50))
    async with process(engine) as server:
        await server.until_status("/readyz", 200)
        body = {**BODY, "stream": True}
        async with server.http.stream("POST", "/v1/completions", json=body) as response:
            engine.gate.clear()
            await anext(response.aiter_lines())
        await eventually(lambda: len(engine.aborted) == 1)


async def test_waiting_stream_is_kept_alive_by_comments() -> None:
    engine = EchoEngine(always("hello"))
    engine.gate.clear()
    async with process(engine, stream_keep_alive_s=0.05) as server:
        await server.until_status("/readyz", 200)
        body = {**BODY, "stream": True}
        async with server.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.aiter_lines()
            waiting = [await anext(lines) for _ in range(4)]
            engine.gate.set()
            rest = [line async for line in lines]
    assert waiting == [": keep-alive", "", ": keep-alive", ""]
    assert rest[-2] == "data: [DONE]"


@pytest.mark.parametrize("work", ["encode", "render_chat"])
async def test_server_answers_while_a_prompt_is_being_made(work: str) -> None:
    """Templates and tokenizer stand still until the server has answered someone else."""
    engine = EchoEngine(always("x"))
    tokenizer = make_tokenizer()
    quick, is_at_work, may_go_on = getattr(tokenizer, work), threading.Event(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> Any:
        is_at_work.set()
        assert may_go_on.wait(30)
        return quick(*arguments, **options)

    setattr(tokenizer, work, slow)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    async with process(engine, lambda state: Loaded(engine, tokenizer)) as server:
        await server.until_status("/readyz", 200)
        answer = asyncio.ensure_future(server.http.post("/v1/chat/completions", json=body))
        await eventually(is_at_work.is_set)
        assert (await server.http.get("/livez")).status_code == 200
        may_go_on.set()
        assert (await answer).status_code == 200

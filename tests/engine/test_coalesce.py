"""A reader that is slower than the engine gets few large pieces, and loses nothing."""

import asyncio
import json
import time

from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message
from tests.bench.stream_overhead import ClockRunner
from tests.engine.byte_tokenizer import VOCAB_SIZE, make_tokenizer
from tests.engine.core_driver import greedy, prompt_of
from tests.engine.fake_runner import FakeRunner
from tests.engine.server_client import MODEL, make_state

from octavo_engine.config import SchedulerSettings
from octavo_engine.core.in_process import InProcessEngine
from octavo_engine.messages import EngineRequest, RequestDelta
from octavo_engine.server.app import build_app
from octavo_engine.server.coalesce import coalesce
from octavo_engine.server.generation import Generation


@st.composite
def streams(draw: st.DrawFn) -> list[RequestDelta]:
    """Deltas of up to three sequences, mixed; each ends at most once, at its end."""
    order = draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))
    ended = draw(st.sets(st.integers(0, 2)))
    last = {index: at for at, index in enumerate(order)}
    return [
        RequestDelta(
            request_id="r",
            index=index,
            token_ids=[at],
            finish_reason="stop" if index in ended and last[index] == at else None,
        )
        for at, index in enumerate(order)
    ]


@given(streams())
def test_nothing_is_lost_and_each_sequence_comes_once(deltas: list[RequestDelta]) -> None:
    joined = coalesce(deltas)
    assert [delta.index for delta in joined] == list(dict.fromkeys(d.index for d in deltas))
    for delta in joined:
        parts = [part for part in deltas if part.index == delta.index]
        assert delta.token_ids == [token_id for part in parts for token_id in part.token_ids]
        assert delta.finish_reason == parts[-1].finish_reason


async def test_reader_that_comes_late_gets_one_piece() -> None:
    engine = InProcessEngine(FakeRunner(vocab_size=VOCAB_SIZE), SchedulerSettings())
    state = make_state(engine, make_tokenizer())
    assert state.loaded is not None
    request = EngineRequest(request_id="a", prompt_token_ids=prompt_of(5), params=greedy(50))
    generation = Generation(state, state.loaded, [request])
    deadline_s = time.monotonic() + 30
    while engine.stats().finished_total["length"] == 0:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)
    pieces = [item async for batch in generation.deltas() for item in batch]
    await engine.close()
    assert len(pieces) == 1
    assert len(pieces[0].delta.tokens) == 50


async def test_client_that_does_not_take_its_chunks_gets_the_rest_in_one() -> None:
    """The connection is full from the third piece on, until the engine has done all."""
    num_tokens = 2000
    engine = InProcessEngine(ClockRunner(1, 0.0), SchedulerSettings())
    app = build_app(make_state(engine, make_tokenizer()))
    body = {"model": MODEL, "prompt": "hi", "max_tokens": num_tokens, "stream": True}
    requests = [{"type": "http.request", "body": json.dumps(body).encode()}]
    pieces: list[bytes] = []

    async def receive() -> Message:
        return requests.pop() if requests else await asyncio.Future()

    async def send(message: Message) -> None:
        pieces.append(message.get("body", b""))
        while len(pieces) > 2 and engine.stats().has_work:
            await asyncio.sleep(0.01)

    headers = [(b"content-type", b"application/json")]
    path = {"method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}
    await app({"type": "http", "http_version": "1.1", **path}, receive, send)
    await engine.close()
    chunks = [json.loads(line[6:]) for line in b"".join(pieces).splitlines() if b"{" in line]
    texts = [choice["text"] for chunk in chunks for choice in chunk["choices"]]
    assert len(chunks) < num_tokens / 10
    assert len("".join(texts)) == num_tokens
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"

"""A reader that is slower than the engine gets few large pieces, and loses nothing."""

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st
from tests.engine.byte_tokenizer import VOCAB_SIZE, make_tokenizer
from tests.engine.core_driver import greedy, prompt_of
from tests.engine.fake_runner import FakeRunner
from tests.engine.server_client import make_state

from octavo_engine.config import SchedulerSettings
from octavo_engine.core.in_process import InProcessEngine
from octavo_engine.messages import EngineRequest, RequestDelta
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
    assert len({delta.index for delta in joined}) == len(joined)
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

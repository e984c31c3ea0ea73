"""An engine on its own thread over the fake runner, and requests to it."""

from collections.abc import AsyncIterator

from tests.engine.core_driver import greedy, prompt_of

from octavo_engine.batch import Runner
from octavo_engine.config import SchedulerSettings
from octavo_engine.core.in_process import InProcessEngine
from octavo_engine.messages import EngineRequest, RequestDelta
from octavo_engine.sampling_params import SamplingParams


def request(
    request_id: str, prompt: list[int] | None = None, params: SamplingParams | None = None
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=prompt_of(10) if prompt is None else prompt,
        params=params or greedy(),
    )


def engine(runner: Runner, **fields: object) -> InProcessEngine:
    return InProcessEngine(runner, SchedulerSettings(**fields))  # type: ignore[arg-type]  # fields of several types


async def read(stream: AsyncIterator[list[RequestDelta]]) -> list[RequestDelta]:
    return [delta async for deltas in stream for delta in deltas]

"""Sends planned requests to a server: in an open loop at their times, or in a closed one.

Open: a request is sent when it is due, however slow the server is. Closed: each of so many clients
sends the next when it has its answer.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from octavo_engine.bench.http_stream import HttpClient
from octavo_engine.bench.sample import Sample, SampleReader
from octavo_engine.bench.workload import Planned, prompt


@dataclass(frozen=True, slots=True)
class Target:
    model: str
    is_chat: bool
    temperature: float | None = None
    ignores_eos: bool = True
    """Answers are as long as planned; a field that OpenAI itself does not know."""

    @property
    def path(self) -> str:
        return "/chat/completions" if self.is_chat else "/completions"

    def body(self, planned: Planned, rng: random.Random) -> bytes:
        text = prompt(planned.num_input_words, rng)
        fields: dict[str, object] = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": planned.num_output_tokens,
        }
        if self.is_chat:
            fields["messages"] = [{"role": "user", "content": text}]
        else:
            fields["prompt"] = text
        if self.temperature is not None:
            fields["temperature"] = self.temperature
        if self.ignores_eos:
            fields["ignore_eos"] = True
        return msgspec.json.encode(fields)


async def open_loop(
    client: HttpClient,
    target: Target,
    plan: Sequence[Planned],
    *,
    seed: int,
    on_end: Callable[[], None] = lambda: None,
) -> list[Sample]:
    rng, begin_s = random.Random(seed), time.perf_counter()

    async def send(planned: Planned, body: bytes) -> Sample:
        await asyncio.sleep(begin_s + planned.at_s - time.perf_counter())
        return await ask(client, target, body, on_end)

    bodies = [(planned, target.body(planned, rng)) for planned in plan]
    return await asyncio.gather(*(send(planned, body) for planned, body in bodies))


async def closed_loop(
    client: HttpClient,
    target: Target,
    plan: Iterable[Planned],
    *,
    num_clients: int,
    seed: int,
    on_end: Callable[[], None] = lambda: None,
) -> list[Sample]:
    rng = random.Random(seed)
    left: Iterator[Planned] = iter(plan)
    samples: list[Sample] = []

    async def work() -> None:
        for planned in left:  # all workers take from the one iterator
            samples.append(await ask(client, target, target.body(planned, rng), on_end))

    await asyncio.gather(*(work() for _ in range(num_clients)))
    return samples


async def ask(
    client: HttpClient, target: Target, body: bytes, on_end: Callable[[], None] = lambda: None
) -> Sample:
    """One request. What goes wrong is in the sample: a benchmark goes on."""
    sample = Sample(start_s=time.perf_counter())
    reader = SampleReader(sample)
    try:
        status = await client.post(
            target.path, body, lambda piece: reader.take(piece, time.perf_counter())
        )
        reader.finish(status)
    except (OSError, msgspec.DecodeError) as error:
        sample.error = f"{type(error).__name__}: {error}"
    on_end()
    return sample

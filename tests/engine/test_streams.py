"""The hand-over of deltas to an event loop: nothing is lost, and the loop keeps its turns."""

import asyncio
import threading

from octavo_engine.core.streams import DeltaStream, LoopMailbox
from octavo_engine.messages import FinishReason, RequestDelta

NUM_STREAMS = 200
NUM_STEPS = 5


def delta(name: str, token_id: int, reason: FinishReason | None = None) -> RequestDelta:
    return RequestDelta(request_id=name, index=0, token_ids=[token_id], finish_reason=reason)


def steps(names: list[str]) -> list[list[RequestDelta]]:
    last = NUM_STEPS - 1
    return [
        [delta(name, step, "length" if step == last else None) for name in names]
        for step in range(NUM_STEPS)
    ]


async def read(stream: DeltaStream) -> list[int]:
    return [token for deltas in [d async for d in stream] for d in deltas for token in d.token_ids]


async def test_every_stream_gets_all_its_deltas_in_order_from_another_thread() -> None:
    mailbox = LoopMailbox(asyncio.get_running_loop())
    names = [str(number) for number in range(NUM_STREAMS)]
    readers = [asyncio.ensure_future(read(mailbox.open_stream(name, 1))) for name in names]
    await asyncio.sleep(0)

    def post() -> None:
        for deltas in steps(names):
            mailbox.post(deltas)

    thread = threading.Thread(target=post)
    thread.start()
    assert await asyncio.gather(*readers) == [list(range(NUM_STEPS))] * NUM_STREAMS
    thread.join()
    assert not any(mailbox.has_stream(name) for name in names)


async def test_a_step_for_many_readers_takes_many_turns_of_the_loop() -> None:
    loop = asyncio.get_running_loop()
    mailbox = LoopMailbox(loop)
    turn, turns_of_readers = 0, []

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(turns_of_readers) < NUM_STREAMS:
            loop.call_soon(count)

    async def wait_for_one(stream: DeltaStream) -> None:
        await anext(stream)
        turns_of_readers.append(turn)

    names = [str(number) for number in range(NUM_STREAMS)]
    readers = [asyncio.ensure_future(wait_for_one(mailbox.open_stream(n, 1))) for n in names]
    await asyncio.sleep(0)
    count()
    mailbox.post(steps(names)[0])
    await asyncio.gather(*readers)
    busiest = max(turns_of_readers.count(each) for each in set(turns_of_readers))
    assert busiest <= NUM_STREAMS / 10


async def test_what_comes_before_a_reader_has_its_turn_is_read_at_once() -> None:
    mailbox = LoopMailbox(asyncio.get_running_loop())
    names = [str(number) for number in range(NUM_STREAMS)]
    readers = [asyncio.ensure_future(anext(mailbox.open_stream(n, 1))) for n in names]
    await asyncio.sleep(0)
    first, second, *_ = steps(names)
    mailbox.post(first)
    mailbox.post(second)
    unread = await asyncio.gather(*readers)
    assert [len(deltas) for deltas in unread[-3:]] == [2, 2, 2]


async def test_a_reader_that_gives_up_loses_nothing() -> None:
    mailbox = LoopMailbox(asyncio.get_running_loop())
    stream = mailbox.open_stream("a", 1)
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    mailbox.post([delta("a", 1)])
    reader.cancel()
    await asyncio.wait({reader})
    mailbox.post([delta("a", 2, "stop")])
    assert await read(stream) == [1, 2]

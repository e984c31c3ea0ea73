"""Running coroutines together, and until told to stop."""

import asyncio

import pytest

from octavo_operator.tasks import together, unless_stopped


class Sleeper:
    def __init__(self):
        self.was_cancelled = False

    async def run(self):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


async def fail():
    raise LookupError("broken")


async def test_one_failure_ends_all():
    sleeper = Sleeper()

    with pytest.raises(LookupError, match="broken"):
        await together(sleeper.run(), fail())

    assert sleeper.was_cancelled


async def test_cancelling_reaches_every_part():
    sleeper = Sleeper()
    task = asyncio.create_task(together(sleeper.run()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert sleeper.was_cancelled


async def test_a_stop_cancels_the_work():
    sleeper, stop = Sleeper(), asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, stop.set)

    assert await unless_stopped(sleeper.run(), stop) is False
    assert sleeper.was_cancelled


async def test_work_that_ends_by_itself_is_told():
    assert await unless_stopped(asyncio.sleep(0), asyncio.Event()) is True


async def test_a_failure_comes_through():
    with pytest.raises(LookupError, match="broken"):
        await unless_stopped(fail(), asyncio.Event())

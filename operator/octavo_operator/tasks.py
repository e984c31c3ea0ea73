"""Running coroutines together, and until told to stop. Knows nothing of operators."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any

Part = Coroutine[Any, Any, None]


def stop_on_signals(stop: asyncio.Event) -> None:
    """SIGTERM and SIGINT set `stop`; takes the signals back from whoever took them since."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def together(*parts: Part) -> None:
    """All run until one ends with an error, which is raised; the others are cancelled first."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def unless_stopped(part: Part, stop: asyncio.Event) -> bool:
    """Whether the part came to its end before `stop` was set; it is cancelled otherwise."""
    work = asyncio.create_task(part)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not work.done():
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
    if work.cancelled():
        return False
    await work
    return True

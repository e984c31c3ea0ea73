"""The event loop that a server runs on: uvloop where it is installed, asyncio's own otherwise."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_SWITCH_INTERVAL_S = 0.0005
"""How long a thread that renders or tokenises may keep the interpreter from the loop. Each of some
such threads may do so in turn, and Python's own 5 ms add up to what a probe notices."""


def run_on_fast_loop(main: Coroutine[Any, Any, T]) -> T:
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        import uvloop
    except ImportError:  # not made for every platform
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)

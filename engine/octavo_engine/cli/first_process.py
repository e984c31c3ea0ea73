"""Being a container's first process: the kernel lets nothing end it that it has not asked for."""

import os
import signal
from types import FrameType

_TOLD_TO_STOP = 128 + signal.SIGTERM


def heed_sigterm() -> None:
    """Lets SIGTERM end this process from now on, also while modules are still being imported.

    Without a handler of its own the first process of a pid namespace never gets the signal, so a
    pod that is told to leave before its server listens would stay for its whole grace period. The
    server puts its own handler in place of this one.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(_TOLD_TO_STOP)

"""One server process from start to exit: listen, load, serve, drain.

The port listens at once, the engine loads on a thread. The signals are ours: uvicorn's own handling
would cut running streams.
"""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Any

import structlog
import uvicorn

from octavo_engine.errors import EngineDead, EngineStalled
from octavo_engine.server.app import build_app
from octavo_engine.server.http_protocol import BoundedHttp
from octavo_engine.server.info_routes import liveness_problem
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.state import Loaded, Phase, ServerState
from octavo_engine.server.tls import ServerTls

log = structlog.get_logger(__name__)

_HEALTH_PERIOD_S = 0.5
_CERTIFICATE_PERIOD_S = 5.0
_LAST_WORDS_S = 5.0
"""After aborting: time for the last chunks to leave."""


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: ServerSettings, load: Callable[[ServerState], Loaded]) -> None:
    """Serves until a signal; returns when drained.

    `load` runs on a thread. Raises what `load` raises, `EngineDead` when the engine stops by
    itself, `EngineStalled` when it makes no steps at the signal, `OSError` when the port cannot be
    had, and `ConfigError` for keys or certificates that cannot be read.
    """
    state = ServerState(settings)
    tls = None if settings.tls is None else ServerTls(settings.tls)
    server = _Uvicorn(_uvicorn_config(settings, state, tls))
    signals = _Signals()
    listening = asyncio.ensure_future(_listen(server))
    background = [
        asyncio.ensure_future(_renew_certificate(tls)),
        asyncio.ensure_future(_measure_lag(state)),
    ]
    try:
        await _load_and_wait(state, signals, load, listening)
    except BaseException:
        if state.loaded is not None:
            state.loaded.engine.abandon()
        raise
    finally:
        for task in background:
            task.cancel()
        server.should_exit = True
        await listening
        signals.close()
    if state.loaded is not None:
        await state.loaded.engine.close()


async def _load_and_wait(
    state: ServerState,
    signals: "_Signals",
    load: Callable[[ServerState], Loaded],
    listening: "asyncio.Task[None]",
) -> None:
    began_s = time.monotonic()
    told_to_stop = asyncio.ensure_future(signals.first.wait())
    loading = asyncio.ensure_future(_on_daemon_thread(lambda: load(state)))
    await asyncio.wait({told_to_stop, loading, listening}, return_when=asyncio.FIRST_COMPLETED)
    if listening.done() or not loading.done():
        loading.cancel()
        told_to_stop.cancel()
        return
    state.loaded = loading.result()
    state.phase = Phase.READY
    load_s = time.monotonic() - began_s
    state.startup.finish(time.monotonic())
    for stage, seconds in state.startup.stage_seconds.items():
        state.metrics.observe_startup(stage, seconds)
    state.metrics.observe_startup("total", load_s)
    log.info(
        "ready",
        model=state.settings.model_name,
        port=state.settings.port,
        seconds=round(load_s, 3),
        stages=state.startup.rounded_seconds(),
    )
    await _until_stopped_or_dead(state, told_to_stop)
    await drain(state, signals)


async def _until_stopped_or_dead(state: ServerState, told_to_stop: "asyncio.Future[Any]") -> None:
    assert state.loaded is not None
    while not told_to_stop.done():
        await asyncio.wait({told_to_stop}, timeout=_HEALTH_PERIOD_S)
        death = state.loaded.engine.death
        if death is not None:
            told_to_stop.cancel()
            raise EngineDead(death)
    # A drain would wait in vain for streams of an engine that makes no step.
    if (stall := liveness_problem(state)) is not None:
        raise EngineStalled(stall)


async def drain(state: ServerState, signals: "_Signals") -> None:
    """Lets what runs finish within the time allowed, then aborts the rest.

    A second signal skips the waiting. New requests are taken for a grace period, since whoever
    spreads the load hears of the stop later than we do.
    """
    settings = state.settings
    log.info("stopping", drain_s=settings.drain_s)
    state.phase = Phase.LEAVING
    deadline_s = time.monotonic() + settings.drain_s
    grace_s = 0.0 if signals.is_interactive else min(settings.drain_grace_s, settings.drain_s)
    if not await _wait(signals.second.wait(), grace_s):
        state.phase = Phase.DRAINING
        idle = asyncio.ensure_future(state.wait_idle())
        second = asyncio.ensure_future(signals.second.wait())
        timeout_s = max(deadline_s - time.monotonic(), 0.0)
        await asyncio.wait({idle, second}, timeout=timeout_s, return_when="FIRST_COMPLETED")
        idle.cancel()
        second.cancel()
    state.phase = Phase.STOPPING
    num_aborted = state.abort_running()
    if num_aborted:
        log.warning("requests aborted at the end of the drain", count=num_aborted)
    await _wait(state.wait_idle(), _LAST_WORDS_S)


class _Signals:
    """SIGTERM and SIGINT as events of the running loop: the first asks, the second hastens."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.is_interactive = False
        """Asked by Ctrl-C: there is no load balancer to wait for."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._take, number)

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)

    def _take(self, number: signal.Signals) -> None:
        if self.first.is_set():
            self.second.set()
        self.is_interactive = self.is_interactive or number == signal.SIGINT
        self.first.set()


async def _listen(server: uvicorn.Server) -> None:
    try:
        await server.serve()
    except SystemExit as error:  # uvicorn has logged why it cannot listen
        config = server.config
        raise OSError(f"cannot listen on {config.host}:{config.port}") from error


async def _on_daemon_thread(work: Callable[[], Loaded]) -> Loaded:
    """Unlike `asyncio.to_thread`, does not hold up the exit of a process told to stop."""
    result: Future[Loaded] = Future()
    result.set_running_or_notify_cancel()  # the thread cannot be cancelled, so neither can this

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="octavo-load", daemon=True).start()
    return await asyncio.wrap_future(result)


async def _wait(work: Awaitable[object], timeout_s: float) -> bool:
    """Whether `work` ended in time."""
    try:
        await asyncio.wait_for(work, timeout_s)
    except TimeoutError:
        return False
    return True


async def _measure_lag(state: ServerState) -> None:
    while True:
        due_s = time.monotonic() + _HEALTH_PERIOD_S
        await asyncio.sleep(_HEALTH_PERIOD_S)
        state.metrics.event_loop_lag_s.observe(max(time.monotonic() - due_s, 0.0))


async def _renew_certificate(tls: ServerTls | None) -> None:
    while tls is not None:
        await asyncio.sleep(_CERTIFICATE_PERIOD_S)
        tls.reload_if_changed()


def _uvicorn_config(
    settings: ServerSettings, state: ServerState, tls: ServerTls | None
) -> uvicorn.Config:
    config = uvicorn.Config(
        build_app(state),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=BoundedHttp,
        ws="none",
        server_header=False,
        timeout_keep_alive=75,  # longer than load balancers keep theirs
        timeout_graceful_shutdown=int(_LAST_WORDS_S),
    )
    config.load()
    config.ssl = None if tls is None else tls.context
    return config

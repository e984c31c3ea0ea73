"""What one server process holds: the engine once it is loaded, the work in flight, its phase.

Passed to every route; there is no global. Used from the event loop only.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from octavo_engine.messages import EngineClient, EngineInfo, EngineStats
from octavo_engine.server.api_keys import ApiKeys
from octavo_engine.server.chat_formats import AUTO, ChatFormats, choose_formats
from octavo_engine.server.errors import ApiError
from octavo_engine.server.gpu import GpuMonitor
from octavo_engine.server.metrics_registry import ServerMetrics
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.startup import StartupProgress
from octavo_engine.server.structure import GrammarChecks
from octavo_engine.structured.compiler import GrammarCompiler
from octavo_engine.text.tokenizer import Tokenizer


class Phase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    LEAVING = "leaving"
    """Told to stop: not ready for new connections, but requests that still arrive are served."""
    DRAINING = "draining"
    """New requests are refused; those in flight go on."""
    STOPPING = "stopping"
    """What was still in flight has been aborted."""


class Loaded:
    """What exists from readiness on."""

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        formats: ChatFormats | None = None,
        compiler: GrammarCompiler | None = None,
    ) -> None:
        """formats: as the options say, else guessed. compiler: the engine's, where it is shared."""
        self.engine = engine
        self.tokenizer = tokenizer
        self.formats = formats or choose_formats(AUTO, AUTO, tokenizer)
        self.grammars = GrammarChecks(compiler or GrammarCompiler(lambda: tokenizer))
        self.created_s = int(time.time())


class ServerState:
    def __init__(self, settings: ServerSettings) -> None:
        """Raises ConfigError when the file of API keys cannot be used."""
        self.settings = settings
        self.keys = ApiKeys(settings.api_keys, settings.api_key_file)
        self.phase = Phase.LOADING
        self.loaded: Loaded | None = None
        self.startup = StartupProgress()
        self.metrics = ServerMetrics(
            settings.model_name, self._read_core, GpuMonitor().read, settings.metrics_prefix
        )
        self._num_in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._running_ids: set[str] = set()

    def _read_core(self) -> tuple[EngineStats, EngineInfo] | None:
        if self.loaded is None:
            return None
        return self.loaded.engine.stats(), self.loaded.engine.info

    def require_engine(self) -> Loaded:
        """The engine for new work. Raises `ApiError` 503 with Retry-After when none is taken."""
        if self.loaded is None:
            raise ApiError(503, "the model is still loading", code="loading", retry_after_s=5)
        if self.loaded.engine.death is not None:
            raise ApiError(503, "the engine has stopped", code="engine_dead", retry_after_s=10)
        if self.phase in (Phase.DRAINING, Phase.STOPPING):
            message = "the server is shutting down; try another replica"
            raise ApiError(503, message, code="draining", retry_after_s=1)
        return self.loaded

    def require_model(self, name: str) -> None:
        if name not in self.settings.served_model_names:
            message = f"The model `{name}` does not exist."
            raise ApiError(404, message, param="model", code="model_not_found")

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Holds off the end of a drain while a request is being answered."""
        self._num_in_flight += 1
        self._idle.clear()
        self.metrics.in_flight.inc()
        try:
            yield
        finally:
            self.metrics.in_flight.dec()
            self._num_in_flight -= 1
            if self._num_in_flight == 0:
                self._idle.set()

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def note_running(self, request_id: str) -> None:
        """Registers an engine request so that the end of a drain can abort it."""
        self._running_ids.add(request_id)

    def forget_running(self, request_id: str) -> None:
        self._running_ids.discard(request_id)

    def abort_running(self) -> int:
        """Ends every request in flight; their clients get the finish reason `abort`."""
        if self.loaded is None:
            return 0
        for request_id in list(self._running_ids):
            self.loaded.engine.abort(request_id)
        return len(self._running_ids)

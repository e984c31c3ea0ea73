"""A `Runner` over several ranks: each step goes to all of them, the result is rank 0's."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from octavo_engine.batch import Batch, KVGroup, Runner, StepHandle, StepResult
from octavo_engine.messages import EngineInfo
from octavo_engine.parallel.crew import Crew
from octavo_engine.parallel.group import Group

log = structlog.get_logger(__name__)

_CLOSE_GROUP_LIMIT_S = 10.0


@dataclass(frozen=True)
class ParallelStep:
    at: int
    """Its number in the order of launch."""
    local: StepHandle
    crew: Crew

    def result(self) -> StepResult:
        """Waits for rank 0's step. Raises what is wrong with another rank where that is why."""
        try:
            result = self.local.result()
        except Exception as error:
            raise self.crew.explain(error) from error
        self.crew.note_result(self.at, result)
        return result


class ParallelRunner:
    """Owns rank 0's runner and the crew, and closes both."""

    def __init__(
        self, local: Runner, crew: Crew, group: Group, release: Callable[[], None]
    ) -> None:
        """release: called last."""
        self._local = local
        self._crew = crew
        self._group = group
        self._release = release

    @property
    def info(self) -> EngineInfo:
        return self._local.info

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        return self._local.kv_groups

    @property
    def num_host_blocks(self) -> int:
        return self._local.num_host_blocks

    def launch(self, batch: Batch) -> ParallelStep:
        at = self._crew.send_step(batch)
        return ParallelStep(at, self._local.launch(batch), self._crew)

    def on_failure(self, told: Callable[[str], None]) -> None:
        self._crew.on_failure(told)

    def close(self) -> None:
        """Waits for the steps that were launched, unless a rank has failed: then none may end."""
        if self._crew.failure is None:
            self._local.close()
            self._crew.close()
            self._close_group()
        else:
            self._crew.close()
        self._release()

    def _close_group(self) -> None:
        """Left alone when it takes too long: all that matters has ended."""
        closing = threading.Thread(target=self._group.close, daemon=True)
        closing.start()
        closing.join(_CLOSE_GROUP_LIMIT_S)
        if closing.is_alive():
            log.warning("the group of ranks does not close", limit_s=_CLOSE_GROUP_LIMIT_S)

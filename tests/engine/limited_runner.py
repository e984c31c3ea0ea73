"""A runner with fewer pages than it has, so that its requests must preempt each other."""

import msgspec

from octavo_engine.batch import Batch, KVGroup, StepHandle
from octavo_engine.messages import EngineInfo
from octavo_engine.runner.model_runner import ModelRunner


class Limited:
    def __init__(self, runner: ModelRunner, num_blocks: int, num_host_blocks: int = 0) -> None:
        self._runner = runner
        assert num_blocks <= runner.info.num_blocks
        assert num_host_blocks <= runner.num_host_blocks
        self.info: EngineInfo = msgspec.structs.replace(runner.info, num_blocks=num_blocks)
        self.kv_groups: tuple[KVGroup, ...] = runner.kv_groups
        self.num_host_blocks = num_host_blocks

    def launch(self, batch: Batch) -> StepHandle:
        return self._runner.launch(batch)

    def close(self) -> None:
        pass

"""A rank's runner on its own GPU, whichever thread calls it.

CUDA's current device holds for a thread, and each begins with GPU 0: marks and launches would go
there, and the rank would take memory of a GPU that is another rank's.
"""

from dataclasses import dataclass

import torch

from octavo_engine.batch import Batch, KVGroup, Runner, StepHandle, StepResult
from octavo_engine.messages import EngineInfo


@dataclass(frozen=True)
class StepOnDevice:
    local: StepHandle
    device: torch.device

    def result(self) -> StepResult:
        torch.cuda.set_device(self.device)
        return self.local.result()


class OnDevice:
    """Owns the runner and closes it."""

    def __init__(self, local: Runner, device: torch.device) -> None:
        self._local = local
        self._device = device

    @property
    def info(self) -> EngineInfo:
        return self._local.info

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        return self._local.kv_groups

    @property
    def num_host_blocks(self) -> int:
        return self._local.num_host_blocks

    def launch(self, batch: Batch) -> StepOnDevice:
        torch.cuda.set_device(self._device)
        return StepOnDevice(self._local.launch(batch), self._device)

    def close(self) -> None:
        torch.cuda.set_device(self._device)
        self._local.close()

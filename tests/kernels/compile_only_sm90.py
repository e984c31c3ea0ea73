"""Compiles a kernel twice by `compile_only`, on a machine without a GPU; prints what it counted.

A process of its own, as `compile_sm90`. TRITON_CACHE_DIR says where the kernels go.
"""

import json
from typing import Any

import torch
from tests.kernels.compile_sm90 import OfflineDriver
from triton.runtime import driver

from octavo_kernels.gpu.compile_only import compile_only
from octavo_kernels.gpu.rms_norm import rms_norm


class RecordingDriver(OfflineDriver):
    """Notes for which kernels launchers were asked for."""

    def __init__(self) -> None:
        self.launched: list[str] = []

    def launcher_cls(self, src: Any, metadata: Any) -> None:  # type: ignore[override]  # no class
        self.launched.append(metadata.name)


def main() -> None:
    offline = RecordingDriver()
    driver.set_active(offline)
    x = torch.ones(4, 256, dtype=torch.bfloat16)
    with compile_only(2) as counts:
        y = rms_norm(x, x[0], 1e-5)
        rms_norm(x, x[0], 1e-5)
        num_new = counts.wait_for_new()
        rms_norm(x.float(), x[0], 1e-5)
    numbers = [num_new, counts.num_found, counts.num_compiled]
    print(json.dumps([*numbers, list(y.shape), offline.launched]))


if __name__ == "__main__":
    main()

"""Between host and device without waiting: uploads, downloads and marks in the stream of work.

On a CPU all of it happens at once, so that the runner's logic can be tested without a GPU.
"""

from time import perf_counter

import numpy as np
import torch


def upload(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """The array on the device. On a GPU it goes through pinned memory that torch takes back when
    the copy has ended."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def upload_into(target: torch.Tensor, array: np.ndarray) -> None:
    """Overwrites target once the work launched so far has ended."""
    source = torch.from_numpy(array)
    if not target.is_cpu:
        source = source.pin_memory()
    target.copy_(source, non_blocking=True)


def download(source: torch.Tensor) -> torch.Tensor:
    """A host copy, complete when a `Mark` made afterwards has passed."""
    if source.is_cpu:
        return source
    target = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    return target.copy_(source, non_blocking=True)


class Mark:
    """A point in the device's stream of work; passed when everything before it has ended."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()
        self._time_s = perf_counter()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def seconds_since(self, earlier: "Mark") -> float:
        """Device time between two marks that have passed."""
        if self._event is None or earlier._event is None:
            return self._time_s - earlier._time_s
        return float(earlier._event.elapsed_time(self._event)) / 1000

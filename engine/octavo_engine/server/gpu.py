"""What NVML tells of the GPUs: whether there are any, how busy and how full they are."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pynvml


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    name: str
    utilization: float
    """Share of the last moments in which a kernel ran, 0 to 1."""
    used_bytes: int
    total_bytes: int
    power_w: float
    temperature_c: int


def has_gpu() -> bool:
    """Whether this machine has a driver and a GPU. Takes no memory of a GPU, as CUDA would."""
    with _nvml() as is_there:
        return is_there and pynvml.nvmlDeviceGetCount() > 0


@contextmanager
def _nvml() -> Iterator[bool]:
    """Whether the driver's library could be opened."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()


def read_gpus() -> list[GpuReading]:
    """Of each GPU that this process may see; empty without a driver. A millisecond or so each."""
    with _nvml() as is_there:
        if not is_there:
            return []
        return [_read(index) for index in range(pynvml.nvmlDeviceGetCount())]


def _read(index: int) -> GpuReading:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return GpuReading(
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        utilization=pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        used_bytes=memory.used,
        total_bytes=memory.total,
        power_w=pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        temperature_c=pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    )

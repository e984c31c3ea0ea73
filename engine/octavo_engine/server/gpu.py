"""What NVML tells of the GPUs: whether there are any, how busy and how full they are."""

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
    return _open() and pynvml.nvmlDeviceGetCount() > 0


class GpuMonitor:
    """Keeps the driver's library open, which takes long to open; used by one thread at a time."""

    def __init__(self) -> None:
        self._is_open = _open()

    def read(self) -> list[GpuReading]:
        """Of each GPU that this process may see; empty without a driver. A millisecond or so."""
        if not self._is_open:
            return []
        return [_read(index) for index in range(pynvml.nvmlDeviceGetCount())]


def _open() -> bool:
    """Whether the driver's library could be opened."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


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

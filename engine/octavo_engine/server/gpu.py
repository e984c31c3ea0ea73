"""What NVML tells of the GPUs: whether there are any, how busy and how full they are."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pynvml
import structlog

log = structlog.get_logger(__name__)

T = TypeVar("T")


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """None: this GPU does not tell. A slice of a GPU or a virtual one keeps some to itself."""

    index: int
    utilization: float | None
    """Share of the last moments in which a kernel ran, 0 to 1."""
    used_bytes: int | None
    total_bytes: int | None
    power_w: float | None
    temperature_c: int | None


def has_gpu() -> bool:
    """Whether this machine has a driver and a GPU. Takes no memory of a GPU, as CUDA would."""
    return _open() and pynvml.nvmlDeviceGetCount() > 0


class GpuMonitor:
    """Keeps the driver's library open, which takes long to open; used by one thread at a time."""

    def __init__(self) -> None:
        self._is_open = _open()

    def read(self) -> list[GpuReading]:
        """Of each GPU that this process may see; empty without a driver. A millisecond or so.

        A GPU that fails is left out: the other metrics are read most when one has failed.
        """
        if not self._is_open:
            return []
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            log.warning("the GPUs cannot be read", error=str(error))
            return []
        readings = (_read_or_warn(index) for index in range(count))
        return [reading for reading in readings if reading is not None]


def _open() -> bool:
    """Whether the driver's library could be opened."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def _read_or_warn(index: int) -> GpuReading | None:
    try:
        return _read(index)
    except pynvml.NVMLError as error:
        log.warning("a GPU cannot be read", gpu=index, error=str(error))
        return None


def _read(index: int) -> GpuReading:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = _told(pynvml.nvmlDeviceGetMemoryInfo, handle)
    rates = _told(pynvml.nvmlDeviceGetUtilizationRates, handle)
    power_mw = _told(pynvml.nvmlDeviceGetPowerUsage, handle)
    return GpuReading(
        index=index,
        utilization=None if rates is None else rates.gpu / 100,
        used_bytes=None if memory is None else memory.used,
        total_bytes=None if memory is None else memory.total,
        power_w=None if power_mw is None else power_mw / 1000,
        temperature_c=_told(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
    )


def _told(ask: Callable[..., T], *args: Any) -> T | None:
    try:
        return ask(*args)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission):
        return None

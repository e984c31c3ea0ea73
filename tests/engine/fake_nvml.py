"""A fake of the driver's library, libnvidia-ml: C functions with the signatures and structures of
NVML's documentation, behind which there is no GPU. What a real driver says only a device shows."""

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, Structure, c_int, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any

import pynvml
import pytest

SUCCESS, NOT_SUPPORTED, GPU_IS_LOST, DRIVER_NOT_LOADED = 0, 3, 15, 9


class _Utilization(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Memory(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


@dataclass
class FakeGpu:
    """A code in the place of a number: the call for it fails so."""

    busy_percent: int = 75
    used_bytes: int = 60 << 30
    total_bytes: int = 141 << 30
    power_mw: int = 412_500
    temperature_c: int = 61
    fails: tuple[tuple[str, int], ...] = ()
    """Functions by name, and their code."""


class FakeNvml:
    """The functions are attributes, as of a library that ctypes has opened."""

    def __init__(self, gpus: list[FakeGpu], *, init_code: int = SUCCESS) -> None:
        self.gpus = gpus
        self.count_code = SUCCESS
        self.nvmlInitWithFlags = CFUNCTYPE(c_int, c_uint)(lambda flags: init_code)
        self.nvmlDeviceGetCount_v2 = CFUNCTYPE(c_int, c_void_p)(self._count)
        self.nvmlDeviceGetHandleByIndex_v2 = CFUNCTYPE(c_int, c_uint, c_void_p)(self._handle)
        self.nvmlDeviceGetMemoryInfo = self._of_gpu("nvmlDeviceGetMemoryInfo", _memory)
        self.nvmlDeviceGetUtilizationRates = self._of_gpu("nvmlDeviceGetUtilizationRates", _rates)
        self.nvmlDeviceGetPowerUsage = self._of_gpu("nvmlDeviceGetPowerUsage", _power)
        self.nvmlDeviceGetTemperature = CFUNCTYPE(c_int, c_void_p, c_uint, c_void_p)(
            self._temperature
        )

    def _count(self, out: int) -> int:
        _write(out, c_uint(len(self.gpus)))
        return self.count_code

    def _handle(self, index: int, out: int) -> int:
        _write(out, c_void_p(index + 1))  # a null pointer would be none
        return SUCCESS

    def _of_gpu(self, name: str, answer: Callable[[FakeGpu], Any]) -> Any:
        def call(handle: int, out: int) -> int:
            gpu = self.gpus[handle - 1]
            code = dict(gpu.fails).get(name, SUCCESS)
            if code == SUCCESS:
                _write(out, answer(gpu))
            return code

        return CFUNCTYPE(c_int, c_void_p, c_void_p)(call)

    def _temperature(self, handle: int, sensor: int, out: int) -> int:
        assert sensor == 0  # the die's, the only one there is
        _write(out, c_uint(self.gpus[handle - 1].temperature_c))
        return SUCCESS


def _write(address: int, value: Any) -> None:
    """As C code does, into the caller's memory."""
    ctypes.memmove(address, ctypes.byref(value), ctypes.sizeof(value))


def _memory(gpu: FakeGpu) -> _Memory:
    return _Memory(gpu.total_bytes, gpu.total_bytes - gpu.used_bytes, gpu.used_bytes)


def _rates(gpu: FakeGpu) -> _Utilization:
    return _Utilization(gpu.busy_percent, 99)


def _power(gpu: FakeGpu) -> c_uint:
    return c_uint(gpu.power_mw)


def install(monkeypatch: pytest.MonkeyPatch, library: FakeNvml | None) -> None:
    """pynvml, as it is, finds this library in the place of the driver's; None: finds none."""

    def open_library(name: str) -> FakeNvml:
        assert name == "libnvidia-ml.so.1"
        if library is None:
            raise OSError(f"{name}: cannot open shared object file")
        return library

    monkeypatch.setattr(pynvml, "CDLL", open_library)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

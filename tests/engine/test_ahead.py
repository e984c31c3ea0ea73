"""What a start on a GPU prepares beside the import of torch."""

import ctypes
import gc
from typing import Any

import pytest

from octavo_engine.core.ahead import make_context
from octavo_engine.core.start import uncollected


class Driver:
    """Notes its calls; the one that is named fails."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[str] = []
        self._failing = failing

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object) -> int:
            self.calls.append(name)
            return 100 if name == self._failing else 0

        return call


def as_library(driver: Driver) -> ctypes.CDLL:
    return driver  # type: ignore[return-value]  # has the functions that are called


def test_the_first_gpu_gets_its_context() -> None:
    driver = Driver()
    make_context(as_library(driver))
    assert driver.calls == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]


@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"])
def test_a_driver_that_refuses_is_asked_no_more(call: str) -> None:
    driver = Driver(failing=call)
    with pytest.raises(RuntimeError, match=f"{call} failed with 100"):
        make_context(as_library(driver))
    assert driver.calls[-1] == call


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_is_left_as_it_was_also_by_an_import_that_fails(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    seen = []

    def fail() -> None:
        with uncollected():
            seen.append(gc.isenabled())
            raise ImportError

    try:
        (gc.enable if is_enabled else gc.disable)()
        with pytest.raises(ImportError):
            fail()
        assert [*seen, gc.isenabled()] == [False, is_enabled]
    finally:
        (gc.enable if was_enabled else gc.disable)()

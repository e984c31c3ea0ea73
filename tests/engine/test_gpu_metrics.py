"""The GPUs' metrics through NVML: the reader and pynvml as they are, over a fake of the driver's
library (fake_nvml.py)."""

import pytest
from tests.engine.fake_nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    FakeGpu,
    FakeNvml,
    install,
)

from octavo_engine.cli.serve import is_core_apart
from octavo_engine.server.gpu import GpuMonitor, GpuReading
from octavo_engine.server.metrics import GPU_METRICS
from octavo_engine.server.metrics_registry import ServerMetrics

PREFIX = "octavo:gpu_"


def samples() -> dict[str, float]:
    """By `name:gpu`, as a scrape collects them."""
    metrics = ServerMetrics("m", lambda: None, GpuMonitor().read)
    return {
        f"{sample.name.removeprefix(PREFIX)}:{sample.labels['gpu']}": sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name.startswith(PREFIX)
    }


def test_each_gpu_is_told_in_the_units_of_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml([FakeGpu(), FakeGpu(busy_percent=0, power_mw=70_000)]))
    assert samples() == {
        "utilization_ratio:0": 0.75,
        "memory_used_bytes:0": 60 * 2**30,
        "memory_total_bytes:0": 141 * 2**30,
        "power_watts:0": 412.5,
        "temperature_celsius:0": 61,
        "utilization_ratio:1": 0.0,
        "memory_used_bytes:1": 60 * 2**30,
        "memory_total_bytes:1": 141 * 2**30,
        "power_watts:1": 70.0,
        "temperature_celsius:1": 61,
    }


def test_what_a_gpu_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = (
        ("nvmlDeviceGetUtilizationRates", NOT_SUPPORTED),
        ("nvmlDeviceGetPowerUsage", NOT_SUPPORTED),
    )
    install(monkeypatch, FakeNvml([FakeGpu(fails=fails)]))
    assert set(samples()) == {
        "memory_used_bytes:0",
        "memory_total_bytes:0",
        "temperature_celsius:0",
    }


def test_a_gpu_that_is_lost_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = FakeGpu(fails=(("nvmlDeviceGetMemoryInfo", GPU_IS_LOST),))
    install(monkeypatch, FakeNvml([lost, FakeGpu()]))
    assert {name.rpartition(":")[2] for name in samples()} == {"1"}


def test_a_driver_that_goes_away_leaves_the_other_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml([FakeGpu()])
    install(monkeypatch, library)
    monitor = GpuMonitor()
    assert len(monitor.read()) == 1
    library.count_code = DRIVER_NOT_LOADED
    assert monitor.read() == []


@pytest.mark.parametrize("library", [None, FakeNvml([], init_code=DRIVER_NOT_LOADED)])
def test_without_a_driver_there_are_none(
    library: FakeNvml | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, library)
    assert samples() == {}
    assert not is_core_apart(None, "auto")


def test_a_gpu_gets_the_core_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml([FakeGpu()]))
    assert is_core_apart(None, "auto")
    assert not is_core_apart(None, "cpu")


def test_every_metric_is_one_of_the_readings() -> None:
    assert set(GPU_METRICS) == set(GpuReading.__struct_fields__) - {"index"}

"""What a setting that was taken away leaves behind is removed, and a refusal of that is told."""

from dataclasses import replace

import pytest

from octavo_operator.config import PodMonitorSettings
from octavo_operator.errors import ApiRejected
from octavo_operator.kinds import POD_MONITOR

KEY = ("team", "chat")


@pytest.fixture
async def monitored(reconciler, put, fake_cluster, optional_kinds, service_body):
    """A service with a PodMonitor, at an operator that is to make none any more."""
    put(service_body())
    fake_cluster.served.add(POD_MONITOR)
    await optional_kinds.look()
    await reconciler.reconcile(KEY)
    made = fake_cluster.objects["PodMonitor", *KEY]
    made["metadata"]["uid"] = "uid-m"  # as the API server gives one
    reconciler.cache.put(POD_MONITOR, fake_cluster.put(made))
    return replace(reconciler, monitors=PodMonitorSettings(install=False))


async def test_a_pod_monitor_goes_with_the_wish_for_it(monitored, fake_cluster):
    assert await monitored.reconcile(KEY) == "unchanged"
    assert ("PodMonitor", *KEY) not in fake_cluster.objects
    assert monitored.metrics.removed.labels("PodMonitor")._value.get() == 1


async def test_a_removal_that_is_refused_is_told(monitored, fake_cluster):
    fake_cluster.failures["delete PodMonitor"] = ApiRejected("DELETE", 403, "forbidden")

    assert await monitored.reconcile(KEY) == "rejected"
    conditions = fake_cluster.objects["InferenceService", *KEY]["status"]["conditions"]
    (degraded,) = [one for one in conditions if one["type"] == "Degraded"]
    assert degraded["reason"] == "ApplyRejected"
    assert "refuses to remove the PodMonitor chat" in degraded["message"]


async def test_one_that_has_gone_already_is_no_trouble(monitored, fake_cluster):
    del fake_cluster.objects["PodMonitor", *KEY]

    assert await monitored.reconcile(KEY) == "unchanged"

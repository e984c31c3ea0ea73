"""The number of replicas of a service: what is remembered, from where, and for how long."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from octavo_operator import api
from octavo_operator.autoscale import ReplicaLoad, ScaleReason
from octavo_operator.metrics import Metrics
from octavo_operator.samples import ServiceLoad
from octavo_operator.scaling import Autoscaler
from octavo_operator.snapshot import Snapshot

KEY = ("team", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
IDLE = ReplicaLoad(0, 0, 0.0, 8)
SCALED = {"autoscaling": {"maxReplicas": 5, "scaleDownStabilizationSeconds": 60}}


@pytest.fixture
def seen():
    return SimpleNamespace(load=ServiceLoad())


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def autoscaler(seen, metrics):
    return Autoscaler(lambda snapshot: seen.load, metrics)


@pytest.fixture
def scale(autoscaler, service_body):
    def ask(spec=SCALED, deployed=None, at_s=0, **metadata):
        children = {} if deployed is None else {"Deployment": {"spec": {"replicas": deployed}}}
        service = api.parse(service_body(spec, **metadata))
        return autoscaler.scale(service, Snapshot(children), NOW + timedelta(seconds=at_s))

    return ask


def metric(metrics, name, value="replicas"):
    labels = {"namespace": "team", "service": "chat", "value": value}
    return metrics.registry.get_sample_value(name, labels)


def test_without_autoscaling_the_spec_says_the_number(scale):
    scaled = scale({"replicas": 4}, deployed=2)
    assert (scaled.replicas, scaled.decision) == (4, None)


def test_a_new_service_begins_with_the_minimum(scale):
    assert scale().replicas == 1


def test_a_new_process_goes_on_from_the_deployment(scale):
    """With nothing read yet: neither the minimum nor what an old status says."""
    scaled = scale(deployed=4)
    assert (scaled.replicas, scaled.decision.reason) == (4, ScaleReason.NO_READY_REPLICAS)


def test_a_foreign_change_of_the_deployment_is_not_taken_over(scale, seen):
    seen.load = ServiceLoad((IDLE,))
    assert scale(deployed=1).replicas == 1
    assert scale(deployed=5).replicas == 1


def test_a_window_runs_from_call_to_call(scale, seen, autoscaler):
    seen.load = ServiceLoad((IDLE,) * 3)

    assert scale(deployed=3).replicas == 3
    assert autoscaler.waits_for_time(KEY)
    assert scale(deployed=3, at_s=59).replicas == 3
    assert scale(deployed=3, at_s=60).replicas == 1
    assert not autoscaler.waits_for_time(KEY)


def test_a_service_made_anew_inherits_nothing(scale, seen):
    seen.load = ServiceLoad((ReplicaLoad(40, 8, 0.1, 8),))
    assert scale(deployed=1).replicas == 4

    seen.load = ServiceLoad()
    assert scale(uid="another").replicas == 1


def test_decisions_are_metrics_until_the_service_goes(scale, seen, metrics, autoscaler):
    seen.load = ServiceLoad((ReplicaLoad(40, 8, 0.1, 8),))
    scale(deployed=1)

    assert metric(metrics, "octavo_operator_autoscaling") == 4
    assert metric(metrics, "octavo_operator_autoscaling", "room_per_replica") == 8
    labels = {"direction": "up", "reason": "PendingRequests"}
    assert metrics.registry.get_sample_value("octavo_operator_scalings_total", labels) == 1

    autoscaler.forget(KEY)
    assert metric(metrics, "octavo_operator_autoscaling") is None


def test_a_service_that_takes_its_number_from_the_spec_again_is_forgotten(scale, metrics):
    scale(deployed=3)
    scale({"replicas": 2}, deployed=3)

    assert metric(metrics, "octavo_operator_autoscaling") is None

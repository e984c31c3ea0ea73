"""One reconcile: what is written, and what is told, when the API server answers so or so."""

import pytest

from octavo_operator.errors import ApiRejected, ApiUnavailable
from octavo_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, POD_MONITOR, REPLICA_SET

KEY = ("team", "chat")


def condition(cluster, condition_type):
    status = cluster.objects["InferenceService", *KEY]["status"]
    return next(c for c in status["conditions"] if c["type"] == condition_type)


def calls_of_weight(cluster):
    return [call for call in cluster.calls if call != "create Event"]


async def test_a_new_service_gets_its_children_and_a_status(
    reconciler, put, fake_cluster, service_body
):
    put(service_body())

    assert await reconciler.reconcile(KEY) == "applied"
    assert {kind for kind, *_ in fake_cluster.objects} == {
        "InferenceService",
        "ServiceAccount",
        "Service",
        "PodDisruptionBudget",
        "NetworkPolicy",
        "Deployment",
        "Event",
    }
    assert condition(fake_cluster, "Accepted")["status"] == "True"
    assert condition(fake_cluster, "Ready")["reason"] == "RollingOut"


async def test_a_second_reconcile_calls_nobody(reconciler, put, fake_cluster, service_body):
    put(service_body())
    await reconciler.reconcile(KEY)
    fake_cluster.calls.clear()

    assert await reconciler.reconcile(KEY) == "unchanged"
    assert fake_cluster.calls == []


async def test_a_pod_monitor_is_made_where_its_kind_is_served(
    reconciler, put, fake_cluster, optional_kinds, service_body
):
    put(service_body())
    fake_cluster.served.add(POD_MONITOR)
    await optional_kinds.look()

    assert await reconciler.reconcile(KEY) == "applied"
    assert ("PodMonitor", *KEY) in fake_cluster.objects


@pytest.mark.parametrize("status", [404, 405])
async def test_a_kind_that_has_just_gone_is_no_fault_of_a_service(
    reconciler, put, fake_cluster, optional_kinds, service_body, status
):
    put(service_body())
    fake_cluster.served.add(POD_MONITOR)
    await optional_kinds.look()
    fake_cluster.failures["apply PodMonitor"] = ApiRejected("PATCH", status, "not there")

    assert await reconciler.reconcile(KEY) == "applied"
    assert condition(fake_cluster, "Degraded")["status"] == "False"
    assert optional_kinds.served == ()
    assert optional_kinds.changed.is_set()


async def test_a_pod_monitor_that_is_refused_is_told(
    reconciler, put, fake_cluster, optional_kinds, service_body
):
    put(service_body())
    fake_cluster.served.add(POD_MONITOR)
    await optional_kinds.look()
    fake_cluster.failures["apply PodMonitor"] = ApiRejected("PATCH", 422, "a webhook says no")

    assert await reconciler.reconcile(KEY) == "rejected"
    assert "refuses the PodMonitor: a webhook" in condition(fake_cluster, "Degraded")["message"]


async def test_claims_of_replicas_are_made_by_a_stateful_set_alone(
    reconciler, put, fake_cluster, service_body
):
    claim = {"size": "1Gi", "perReplica": True}
    put(service_body({"model": {"uri": "hf://a/b", "cache": {"newClaim": claim}}}))

    assert await reconciler.reconcile(KEY) == "applied"
    kinds = {kind for kind, *_ in fake_cluster.objects}
    assert "StatefulSet" in kinds
    assert not {"Deployment", "PersistentVolumeClaim"} & kinds
    fake_cluster.calls.clear()
    assert await reconciler.reconcile(KEY) == "unchanged"
    assert fake_cluster.calls == []


@pytest.mark.parametrize("metadata", [{"deletionTimestamp": "2026-01-01T00:00:00Z"}])
async def test_a_service_that_is_being_deleted_is_left_alone(
    reconciler, put, fake_cluster, service_body, metadata
):
    put(service_body(**metadata))

    assert await reconciler.reconcile(KEY) == "gone"
    assert fake_cluster.calls == []


async def test_an_unknown_service_is_gone(reconciler):
    assert await reconciler.reconcile(KEY) == "gone"


async def test_a_spec_that_cannot_be_carried_out_is_told(
    reconciler, put, fake_cluster, service_body
):
    put(service_body({"model": {"uri": "ftp://org/name"}}))

    assert await reconciler.reconcile(KEY) == "rejected"
    accepted = condition(fake_cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidModelUri")
    assert "'ftp://org/name'" in accepted["message"]
    assert calls_of_weight(fake_cluster) == ["status InferenceService"]


async def test_an_object_of_somebody_else_is_told_and_not_touched(
    reconciler, put, fake_cluster, service_body
):
    put(service_body())
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat", "namespace": "team", "generation": 1},
    }
    fake_cluster.put(theirs)

    assert await reconciler.reconcile(KEY) == "rejected"
    assert condition(fake_cluster, "Accepted")["reason"] == "NameTaken"
    assert not [call for call in fake_cluster.calls if call.startswith("apply")]


async def test_a_refusal_of_the_api_server_is_told(reconciler, put, fake_cluster, service_body):
    put(service_body())
    fake_cluster.failures["apply Deployment"] = ApiRejected("PATCH", 422, "tolerations: no")

    assert await reconciler.reconcile(KEY) == "rejected"
    for condition_type in ("Ready", "Degraded"):
        told = condition(fake_cluster, condition_type)
        assert told["reason"] == "ApplyRejected"
        assert told["message"] == "the API server refuses the Deployment: tolerations: no"


async def test_an_absent_api_server_is_not_the_services_fault(
    reconciler, put, fake_cluster, service_body
):
    put(service_body())
    fake_cluster.failures["apply Service"] = ApiUnavailable("PATCH", 503, "down")

    with pytest.raises(ApiUnavailable):
        await reconciler.reconcile(KEY)
    assert "status" not in fake_cluster.objects["InferenceService", *KEY]


async def test_a_service_that_goes_while_it_is_looked_at_is_no_error(
    reconciler, put, fake_cluster, service_body
):
    put(service_body())
    fake_cluster.failures["status InferenceService"] = ApiRejected("PATCH", 404, "not found")

    assert await reconciler.reconcile(KEY) == "applied"


async def test_a_service_made_anew_meanwhile_does_not_get_its_predecessors_status(
    reconciler, put, fake_cluster, service_body
):
    put(service_body(uid="uid-0"))
    fake_cluster.put(service_body(uid="uid-1"))

    with pytest.raises(ApiUnavailable):
        await reconciler.reconcile(KEY)

    assert "status" not in fake_cluster.objects["InferenceService", *KEY]


async def test_children_of_a_predecessor_are_waited_for(
    reconciler, put, fake_cluster, cache, service_body
):
    put(service_body(uid="uid-0"))
    await reconciler.reconcile(KEY)
    cache.drop(INFERENCE_SERVICE, service_body())
    put(service_body(uid="uid-1"))
    fake_cluster.calls.clear()

    assert await reconciler.reconcile(KEY) == "waiting"
    assert condition(fake_cluster, "Ready")["reason"] == "PredecessorTerminating"
    assert calls_of_weight(fake_cluster) == ["status InferenceService"]


async def test_drift_is_put_back(reconciler, put, fake_cluster, cache, service_body):
    put(service_body())
    await reconciler.reconcile(KEY)
    drifted = fake_cluster.objects["Deployment", *KEY]
    drifted["spec"]["replicas"] = 9
    cache.put(DEPLOYMENT, fake_cluster.put(drifted))
    fake_cluster.calls.clear()

    assert await reconciler.reconcile(KEY) == "applied"
    assert fake_cluster.calls[0] == "apply Deployment"
    assert fake_cluster.objects["Deployment", *KEY]["spec"]["replicas"] == 1


def taken_up(deployment):
    """As its controller leaves it once it has made the ReplicaSet of the newest template."""
    revision = {"deployment.kubernetes.io/revision": "1"}
    annotations = {**deployment["metadata"]["annotations"], **revision}
    metadata = {**deployment["metadata"], "annotations": annotations}
    return {**deployment, "metadata": metadata, "status": {"observedGeneration": 1}}


def without_volumes(pod_body, since):
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": since},
        {"type": "PodReadyToStartContainers", "status": "False"},
    ]
    return pod_body(metadata={"uid": "pod-uid"}, phase="Pending", conditions=conditions)


async def test_a_pod_that_waits_for_its_volumes_is_explained_by_its_events(
    reconciler, put, cache, fake_cluster, service_body, pod_body, replica_set_body, woken_later
):
    put(service_body())
    await reconciler.reconcile(KEY)
    cache.put(DEPLOYMENT, fake_cluster.put(taken_up(fake_cluster.objects["Deployment", *KEY])))
    cache.put(REPLICA_SET, replica_set_body())
    cache.put(POD, without_volumes(pod_body, "2025-12-31T23:58:20Z"))
    message = 'MountVolume.SetUp failed for volume "tmp" : disk is broken'
    event = {
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "reason": "FailedMount",
        "message": message,
    }
    fake_cluster.events["pod-uid"] = [event]
    await reconciler.reconcile(KEY)

    assert condition(fake_cluster, "ModelReady")["reason"] == "VolumeMount"
    assert message in condition(fake_cluster, "Degraded")["message"]
    assert woken_later == [(KEY, 50.0)], "half of the time that it has waited"


async def test_a_pod_that_has_just_come_to_its_node_costs_no_call(
    reconciler, put, cache, fake_cluster, service_body, pod_body, woken_later
):
    put(service_body())
    cache.put(POD, without_volumes(pod_body, "2025-12-31T23:59:59Z"))
    await reconciler.reconcile(KEY)

    assert "list Event" not in fake_cluster.calls
    assert woken_later == [(KEY, 2.0)]


async def test_transitions_are_told_by_events_after_the_status(
    reconciler, put, fake_cluster, service_body
):
    put(service_body({"model": {"uri": "ftp://org/name"}}))

    await reconciler.reconcile(KEY)

    assert fake_cluster.calls == ["status InferenceService", "create Event"]


async def test_a_status_that_was_not_written_is_told_by_no_event(
    reconciler, put, fake_cluster, service_body
):
    put(service_body())
    fake_cluster.failures["status InferenceService"] = ApiUnavailable("PATCH", 500, "no")

    with pytest.raises(ApiUnavailable):
        await reconciler.reconcile(KEY)
    assert "create Event" not in fake_cluster.calls

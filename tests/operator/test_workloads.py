"""A Deployment, or a StatefulSet where each replica has a claim of its own."""

import pytest

from octavo_operator import api, children
from octavo_operator.config import EngineDefaults


def parsed(service_body, **new_claim):
    claim = {"size": "1Gi", "perReplica": True, **new_claim}
    model = {"uri": "hf://org/name", "cache": {"newClaim": claim}}
    return api.parse(service_body({"model": model}))


def manifests(service, replicas=1):
    made = children.wanted(service, replicas, EngineDefaults(image="e"), "octavo-system")
    assert [kind.name for kind, _ in children.names(service)] == [m["kind"] for m in made]
    return {manifest["kind"]: manifest for manifest in made}


@pytest.mark.parametrize(
    ("per_replica", "there", "absent"),
    [
        (True, {"StatefulSet"}, {"Deployment", "PersistentVolumeClaim"}),
        (False, {"Deployment", "PersistentVolumeClaim"}, {"StatefulSet"}),
    ],
)
def test_a_claim_for_each_replica_asks_for_a_stateful_set(service_body, per_replica, there, absent):
    made = set(manifests(parsed(service_body, perReplica=per_replica)))

    assert there <= made
    assert not absent & made


def test_each_replica_mounts_its_own_claim_where_a_shared_one_would_be(service_body):
    spec = manifests(parsed(service_body, storageClassName="fast"))["StatefulSet"]["spec"]
    shared = manifests(parsed(service_body, storageClassName="fast", perReplica=False))
    (claim,) = spec["volumeClaimTemplates"]
    pod = spec["template"]["spec"]

    assert claim["spec"] == shared["PersistentVolumeClaim"]["spec"]
    name = claim["metadata"]["name"]
    assert name not in [volume["name"] for volume in pod["volumes"]]
    for container in (pod["containers"][0], pod["initContainers"][0]):
        assert name in [mount["name"] for mount in container["volumeMounts"]]


def test_the_pod_is_the_deployments_but_for_that_volume(service_body):
    stateful = manifests(parsed(service_body))["StatefulSet"]["spec"]
    deployed = manifests(parsed(service_body, perReplica=False))["Deployment"]["spec"]
    pod = deployed["template"]["spec"]
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "model"]

    assert stateful["template"] == deployed["template"]
    assert stateful["selector"] == deployed["selector"]


def test_claims_go_with_their_service_and_stay_while_it_has_fewer_replicas(service_body):
    spec = manifests(parsed(service_body))["StatefulSet"]["spec"]

    kept = {"whenDeleted": "Delete", "whenScaled": "Retain"}
    assert spec["persistentVolumeClaimRetentionPolicy"] == kept
    assert "ownerReferences" in manifests(parsed(service_body))["StatefulSet"]["metadata"]


def test_replicas_wait_for_no_other(service_body):
    """Otherwise one that is broken would hold up the return to what worked before."""
    spec = manifests(parsed(service_body))["StatefulSet"]["spec"]

    assert spec["podManagementPolicy"] == "Parallel"


def test_a_change_of_replicas_changes_no_template(service_body):
    one, three = (manifests(parsed(service_body), n)["StatefulSet"]["spec"] for n in (1, 3))

    assert (one["replicas"], three["replicas"]) == (1, 3)
    assert {**one, "replicas": 3} == three

"""Wrong models and caches are refused at `kubectl apply`, by sentences with field and rule."""

import pytest
from tests.operator.wrong_services import RIGHT, changed, refusal, refusals

pytestmark = pytest.mark.cluster

WRONG = {
    "no model": (
        {"model": None, "replicas": 1},
        "spec.model: Required value",
    ),
    "no uri": ({"model": {"uri": None}}, "spec.model.uri: Required value"),
    "unknown scheme": (
        {"model": {"uri": "ftp://org/name"}},
        "uri must begin with hf://, modelscope://, s3://, gs://, https://, oci://, pvc:// or file",
    ),
    "relative path": (
        {"model": {"uri": "file://models/a"}},
        "uri with file:// must hold an absolute path on the node other than /",
    ),
    "whole node": (
        {"model": {"uri": "file:///"}},
        "uri with file:// must hold an absolute path on the node other than /",
    ),
    "path that climbs": (
        {"model": {"uri": "file:///models/../etc"}},
        "uri must hold no '..' segment and no white space",
    ),
    "path with a blank": (
        {"model": {"uri": "file:///models/a b"}},
        "uri must hold no '..' segment and no white space",
    ),
    "claim that is none": (
        {"model": {"uri": "pvc://Models/a"}},
        "uri with pvc:// must name a claim of this namespace, as in pvc://claim/path",
    ),
    "served name": (
        {"model": {"servedName": "-x y"}},
        "servedName must begin with a letter or digit",
    ),
    "a hub's model without its owner": (
        {"model": {"uri": "hf://name"}},
        "uri with hf:// or modelscope:// must be org/name, org/name@revision",
    ),
    "a hub's folder": (
        {"model": {"uri": "modelscope://org/name/folder"}},
        "uri with hf:// or modelscope:// must be org/name, org/name@revision",
    ),
    "bucket": (
        {"model": {"uri": "s3://Bucket/a"}},
        "uri with s3:// or gs:// must name a bucket and a path in it",
    ),
    "a user in an address": (
        {"model": {"uri": "https://user:key@host/a"}},
        "uri with https:// must hold host and path, without user, query or fragment",
    ),
    "no image": ({"model": {"uri": "oci:///a"}}, "uri with oci:// must name an image"),
    "cache without fetching": (
        {"model": {"uri": "pvc://a/b", "cache": {"emptyDir": {}}}},
        "cache has no meaning with file://, pvc:// and oci://",
    ),
    "refresh without fetching": (
        {"model": {"uri": "file:///a", "refresh": "1"}},
        "refresh has no meaning with file://, pvc:// and oci://",
    ),
    "secret without fetching": (
        {"model": {"uri": "file:///a", "secretRef": {"name": "a"}}},
        "secretRef has no meaning with file:// and pvc://",
    ),
    "secret by a wrong name": (
        {"model": {"uri": "hf://a/b", "secretRef": {"name": "A"}}},
        "name must be the name of a Secret of this namespace",
    ),
    "two caches": (
        {"model": {"uri": "hf://a/b", "cache": {"emptyDir": {}, "claimName": "a"}}},
        "cache must be exactly one of emptyDir, claimName, newClaim and hostPath",
    ),
    "no cache": (
        {"model": {"uri": "hf://a/b", "cache": {}}},
        "cache must be exactly one of emptyDir, claimName, newClaim and hostPath",
    ),
    "claim of a cache": (
        {"model": {"uri": "hf://a/b", "cache": {"claimName": "A b"}}},
        "claimName must be the name of a PersistentVolumeClaim of this namespace",
    ),
    "surge with claims of replicas": (
        {
            "model": {
                "uri": "hf://a/b",
                "cache": {"newClaim": {"size": "1Gi", "perReplica": True}},
            },
            "rollout": {"strategy": "surge"},
        },
        "rollout.strategy surge and rollout.maxSurge have no meaning where "
        "model.cache.newClaim.perReplica is true",
    ),
    "cache on the node": (
        {"model": {"uri": "hf://a/b", "cache": {"hostPath": "/a/../b"}}},
        "hostPath must be an absolute path other than /, without '..' segments",
    ),
}


@pytest.fixture(scope="module")
def refused(kubectl_shared, tmp_path_factory):
    return refusals(kubectl_shared, tmp_path_factory.mktemp("wrong"), WRONG)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_spec_is_refused(refused, case):
    _, sentence = WRONG[case]

    assert sentence in refused.get(case, "it was accepted")


def test_the_served_name_cannot_change(kubectl):
    kubectl.apply(RIGHT)
    body = changed(RIGHT, {"spec": {"model": {"servedName": "other"}}})

    sentence = "servedName is immutable, since clients address the model by it"
    assert sentence in refusal(kubectl, body)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"size": "5Gi"}, "size can only grow, as in the claim"),
        ({"storageClassName": "slow"}, "storageClassName is immutable, as it is in the claim"),
        ({"accessMode": "ReadWriteMany"}, "accessMode is immutable, as it is in the claim"),
    ],
)
def test_a_claim_of_ours_can_only_grow(kubectl, change, sentence):
    def body(**more):
        claim = {"size": "10Gi", "storageClassName": "fast", **more}
        model = {"uri": "hf://org/name", "cache": {"newClaim": claim}}
        return changed(RIGHT, {"spec": {"model": model}})

    kubectl.apply(body())
    assert sentence in refusal(kubectl, body(**change))
    kubectl.apply(body(size="11Gi"))


def test_a_claim_of_ours_cannot_be_taken_away(kubectl):
    model = {"uri": "hf://org/name", "cache": {"newClaim": {"size": "1Gi"}}}
    kubectl.apply(changed(RIGHT, {"spec": {"model": model}}))
    sentence = "newClaim cannot be added or taken away"
    for cache in ({"claimName": "other"}, None):
        model = {"uri": "hf://org/name", "cache": cache}
        assert sentence in refusal(kubectl, changed(RIGHT, {"spec": {"model": model}}))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"size": "11Gi"}, "size is immutable where perReplica is true, as in a StatefulSet"),
        ({"perReplica": False}, "perReplica is immutable, since the claims would stay"),
    ],
)
def test_claims_of_replicas_stay_as_they_are(kubectl, change, sentence):
    def body(**more):
        claim = {"size": "10Gi", "perReplica": True, **more}
        model = {"uri": "hf://org/name", "cache": {"newClaim": claim}}
        return changed(RIGHT, {"spec": {"model": model}})

    kubectl.apply(body())
    assert sentence in refusal(kubectl, body(**change))

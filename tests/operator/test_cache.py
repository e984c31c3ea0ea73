"""The objects last seen: newer wins whatever the order, and a listing tells what is gone."""

import pytest

from octavo_operator.cache import ObjectCache
from octavo_operator.kinds import CONFIG_MAP, DEPLOYMENT, INFERENCE_SERVICE, POD, REPLICA_SET

KEY = ("team", "chat")


def versioned(body, version, **more):
    return {**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}, **more}


@pytest.fixture
def cache():
    return ObjectCache()


def test_an_object_belongs_to_the_service_in_its_label(cache, pod_body, service_body):
    assert cache.put(INFERENCE_SERVICE, service_body()) == KEY
    assert cache.put(POD, pod_body()) == KEY
    assert cache.services() == [KEY]
    assert [pod["metadata"]["name"] for pod in cache.snapshot(KEY).pods] == ["chat-1"]


def test_an_object_without_the_label_is_nobodys(cache, pod_body):
    assert cache.put(POD, pod_body(metadata={"labels": {}})) is None


def test_a_service_may_have_several_config_maps(cache):
    owner = {"kind": "InferenceService", "name": "chat"}
    for name, metadata in [
        ("chat-b", {"labels": {"serving.octavo.dev/service": "chat"}}),
        ("chat-a", {"ownerReferences": [owner]}),
    ]:
        metadata |= {"name": name, "namespace": "team", "resourceVersion": "7"}
        assert cache.put(CONFIG_MAP, {"metadata": metadata}) == KEY

    snapshot = cache.snapshot(KEY)
    assert [one["metadata"]["name"] for one in snapshot.config_maps] == ["chat-a", "chat-b"]
    assert snapshot.children == {}


def test_a_newer_state_wins(cache, service_body):
    cache.put(INFERENCE_SERVICE, versioned(service_body(), 5, status={"a": 1}))

    assert cache.put(INFERENCE_SERVICE, versioned(service_body(), 6, status={"a": 2})) == KEY
    assert cache.service(KEY)["status"] == {"a": 2}


@pytest.mark.parametrize("version", [4, 5])
def test_an_older_or_equal_state_wakes_nobody(cache, service_body, version):
    cache.put(INFERENCE_SERVICE, versioned(service_body(), 5, status={"a": 1}))

    stale = versioned(service_body(), version, status={"a": 0})
    assert cache.put(INFERENCE_SERVICE, stale) is None
    assert cache.service(KEY)["status"] == {"a": 1}


def test_a_deleted_object_is_gone(cache, pod_body):
    cache.put(POD, pod_body())

    assert cache.drop(POD, pod_body()) == KEY
    assert cache.snapshot(KEY).pods == ()


def test_a_listing_from_before_a_deletion_does_not_bring_the_object_back(cache, service_body):
    body = versioned(service_body(), 5)
    cache.put(INFERENCE_SERVICE, body)
    cache.drop(INFERENCE_SERVICE, versioned(service_body(), 8))

    cache.replace_all(INFERENCE_SERVICE, None, [body], "7")
    assert cache.services() == []
    assert cache.put(INFERENCE_SERVICE, body) is None

    made_anew = versioned(service_body(), 9)
    assert cache.put(INFERENCE_SERVICE, made_anew) == KEY


def test_a_deletion_that_is_told_late_does_not_take_the_successor(cache, service_body):
    cache.put(INFERENCE_SERVICE, versioned(service_body(), 9))

    cache.drop(INFERENCE_SERVICE, versioned(service_body(), 8))
    assert cache.services() == [KEY]


def test_deletions_are_forgotten_with_the_next_listing(cache, service_body):
    cache.drop(INFERENCE_SERVICE, versioned(service_body(), 8))
    cache.replace_all(INFERENCE_SERVICE, "other", [], "9")
    assert len(cache._deleted) == 1

    cache.replace_all(INFERENCE_SERVICE, None, [], "9")
    assert cache._deleted == {}


def test_a_listing_removes_what_it_does_not_hold(cache, pod_body):
    cache.put(POD, versioned(pod_body("old"), 5))

    cache.replace_all(POD, None, [versioned(pod_body("new"), 9)], "10")

    assert [pod["metadata"]["name"] for pod in cache.snapshot(KEY).pods] == ["new"]


def test_a_listing_keeps_what_came_after_it(cache, pod_body):
    cache.put(POD, versioned(pod_body("younger"), 11))

    cache.replace_all(POD, None, [], "10")

    assert [pod["metadata"]["name"] for pod in cache.snapshot(KEY).pods] == ["younger"]


def test_a_listing_of_one_namespace_says_nothing_of_others(cache, pod_body):
    cache.put(POD, pod_body())

    cache.replace_all(POD, "other", [], "100")

    assert len(cache.snapshot(KEY).pods) == 1


def test_a_listing_of_one_kind_says_nothing_of_others(cache, pod_body, service_body):
    cache.put(POD, pod_body())
    cache.put(INFERENCE_SERVICE, service_body())

    cache.replace_all(DEPLOYMENT, None, [], "100")

    assert len(cache.snapshot(KEY).pods) == 1
    assert cache.services() == [KEY]


def test_the_record_of_field_owners_is_not_kept(cache, service_body):
    cache.put(INFERENCE_SERVICE, service_body(managedFields=[{"manager": "kubectl"}]))

    assert "managedFields" not in cache.service(KEY)["metadata"]


def test_replica_sets_are_kept_without_their_copy_of_the_pod(cache, replica_set_body):
    cache.put(REPLICA_SET, replica_set_body())

    (kept,) = cache.snapshot(KEY).replica_sets
    assert kept["metadata"]["name"] == "chat-new"
    assert kept["spec"] == {"replicas": 1}

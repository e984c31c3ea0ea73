"""Children of a setting that was taken away, or changed, go once no pod needs them."""

import pytest

from octavo_operator import api, children
from octavo_operator.kinds import POD_MONITOR
from octavo_operator.obsolete import obsolete
from octavo_operator.pod_monitor import PodMonitorSettings, pod_monitor
from octavo_operator.settings_files import config_map
from octavo_operator.snapshot import Snapshot


@pytest.fixture
def service(service_body):
    def parsed(template=None):
        engine = {} if template is None else {"chatTemplate": template}
        return api.parse(service_body({"engine": engine}))

    return parsed


@pytest.fixture
def seen(service, engine_defaults, pod_body, replica_set_body):
    """After a change of the chat template from "old" to "new", both ConfigMaps there."""

    def after(hashes=("new",), old_replicas=0, observed=5, children_of=None):
        wanted = children.wanted(service("new"), 1, engine_defaults, "octavo-system")
        deployment = next(one for one in wanted if one["kind"] == "Deployment")
        deployment["metadata"] |= {
            "generation": 5,
            "annotations": {"deployment.kubernetes.io/revision": "2"},
        }
        deployment["status"] = {"observedGeneration": observed}
        old = replica_set_body("old", 1)
        old["spec"]["replicas"] = old_replicas
        pods = [pod_body(f"chat-{one}", {"labels": {"pod-template-hash": one}}) for one in hashes]
        return wanted, Snapshot(
            {"Deployment": deployment},
            tuple(pods),
            (old, replica_set_body("new", 2)),
            config_maps=tuple(config_map(service(text)) for text in ("old", "new")),
        )

    return after


def names(found):
    return [one["metadata"]["name"] for one in found]


def test_the_old_text_goes_after_the_last_pod_that_reads_it(seen, service):
    wanted, snapshot = seen()

    assert names(obsolete(wanted, snapshot, "uid-1")) == [
        config_map(service("old"))["metadata"]["name"]
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"hashes": ("new", "old")},
        {"hashes": ("old",)},
        {"old_replicas": 1},
        {"observed": 4},
    ],
    ids=["an old pod", "only an old pod", "one may be made", "the rollout has not begun"],
)
def test_it_stays_while_an_old_pod_may_read_it(seen, given):
    wanted, snapshot = seen(**given)

    assert obsolete(wanted, snapshot, "uid-1") == ()


def test_what_belongs_to_others_stays(seen):
    wanted, snapshot = seen()

    assert obsolete(wanted, snapshot, "uid-2") == ()


def test_what_is_being_deleted_is_left_to_go(seen):
    wanted, snapshot = seen()
    snapshot.config_maps[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert obsolete(wanted, snapshot, "uid-1") == ()


def test_what_the_pods_mount_stays_also_under_another_name(seen):
    """As a template would that is kept from a release which named them otherwise."""
    wanted, snapshot = seen()
    volumes = snapshot.children["Deployment"]["spec"]["template"]["spec"]["volumes"]
    mounted = {"name": "x", "configMap": {"name": snapshot.config_maps[0]["metadata"]["name"]}}
    volumes.append(mounted)

    assert obsolete(wanted, snapshot, "uid-1") == ()


def test_a_pod_monitor_that_is_not_wished_any_more_goes_at_once(service, engine_defaults):
    monitor = pod_monitor(service(), PodMonitorSettings())
    snapshot = Snapshot().with_child(monitor)
    without = children.wanted(service(), 1, engine_defaults, "octavo-system")
    with_one = children.wanted(
        service(), 1, engine_defaults, "octavo-system", optional=(POD_MONITOR,)
    )

    assert obsolete(without, snapshot, "uid-1") == (monitor,)
    assert obsolete(with_one, snapshot, "uid-1") == ()

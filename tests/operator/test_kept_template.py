"""What was applied of the pods stays while nobody asks for others, whatever the operator's code."""

import copy
import json

import pytest

from octavo_operator import api, children
from octavo_operator.child import digest
from octavo_operator.config import EngineDefaults
from octavo_operator.kinds import TEMPLATE_ANNOTATION


@pytest.fixture
def workload(service_body, engine_defaults):
    """The Deployment that is wanted for a spec, seen beside what there is."""

    def wanted(spec=None, found=None, defaults=engine_defaults, replicas=1):
        made = children.wanted(
            api.parse(service_body(spec)),
            replicas,
            defaults,
            "octavo-system",
            seen=children.Seen(found),
        )
        return next(one for one in made if one["kind"] in ("Deployment", "StatefulSet"))

    return wanted


def of_another_release(workload):
    """As an operator would have left it that gives a pod more time to begin to answer."""
    left = copy.deepcopy(workload)
    template = left["spec"]["template"]
    template["spec"]["containers"][0]["startupProbe"]["timeoutSeconds"] = 7
    annotations = left["metadata"]["annotations"]
    record = json.loads(annotations[TEMPLATE_ANNOTATION])
    record |= {"template": template, "digest": digest(template)}
    annotations[TEMPLATE_ANNOTATION] = json.dumps(record)
    return left


def timeout(workload):
    return workload["spec"]["template"]["spec"]["containers"][0]["startupProbe"]["timeoutSeconds"]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"replicas": 2},
        {"autoscaling": {"maxReplicas": 3}},
        {"network": {"isolated": False}},
        {"rollout": {"strategy": "recreate"}},
        {"engine": {"prefixCaching": True}},
    ],
    ids=["nothing", "replicas", "autoscaling", "network", "strategy", "the default, said"],
)
def test_another_release_restarts_no_pod(workload, change):
    left = of_another_release(workload())

    goes_on = workload(change, left, replicas=5)
    assert timeout(goes_on) == 7
    assert goes_on["spec"]["replicas"] == 5
    kept = goes_on["metadata"]["annotations"][TEMPLATE_ANNOTATION]
    assert json.loads(kept) == json.loads(left["metadata"]["annotations"][TEMPLATE_ANNOTATION])


@pytest.mark.parametrize(
    "change",
    [
        {"image": "mine:2"},
        {"engine": {"maxNumSeqs": 3}},
        {"rollout": {"drainSeconds": 1}},
        {"podTemplate": {"metadata": {"labels": {"team": "ml"}}}},
    ],
)
def test_a_change_of_the_pod_makes_it_anew(workload, change):
    assert timeout(workload(change, of_another_release(workload()))) == 2


def test_so_do_the_installations_engine_settings(workload):
    left = of_another_release(workload())

    assert timeout(workload(found=left, defaults=EngineDefaults(image="octavo-engine:2"))) == 2


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        '{"asked": "x"}',
        '{"template": []}',
    ],
)
def test_without_a_record_the_template_is_made(workload, text):
    left = workload()
    if text is None:
        del left["metadata"]["annotations"][TEMPLATE_ANNOTATION]
    else:
        left["metadata"]["annotations"][TEMPLATE_ANNOTATION] = text

    assert workload(found=left) == workload()


def test_a_record_that_somebody_changed_is_none_of_ours(workload):
    left = of_another_release(workload())
    annotations = left["metadata"]["annotations"]
    annotations[TEMPLATE_ANNOTATION] = annotations[TEMPLATE_ANNOTATION].replace(
        "octavo-e", "evil-e"
    )

    assert workload(found=left) == workload()


def test_a_template_beyond_the_limit_of_annotations_is_not_kept(workload):
    overlay = {"podTemplate": {"metadata": {"annotations": {"notes": "x" * 200_000}}}}

    large = workload(overlay)
    assert TEMPLATE_ANNOTATION not in large["metadata"]["annotations"]
    assert workload(overlay, large) == large


def test_a_stateful_set_keeps_its_own(workload):
    claim = {"model": {"uri": "hf://a/b", "cache": {"newClaim": {"size": "1", "perReplica": True}}}}
    left = of_another_release(workload(claim))

    assert left["kind"] == "StatefulSet"
    assert timeout(workload(claim, left)) == 7

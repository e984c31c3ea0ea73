"""The wanted manifests: golden files for a reviewer's eye, and what must hold for every service.

After a change on purpose: OCTAVO_UPDATE_GOLDEN=1 pytest tests/operator/test_children.py
"""

import os
from pathlib import Path

import pytest
import yaml

from octavo_operator import api, children
from octavo_operator.config import EngineDefaults
from octavo_operator.kinds import APPLIED_ANNOTATION, TEMPLATE_ANNOTATION

GOLDEN = Path(__file__).parent / "golden"


def wanted(body, defaults):
    service = api.parse(body)
    return children.wanted(service, service.spec.replicas, defaults, "octavo-system")


def of_kind(kind, body, defaults):
    (found,) = [manifest for manifest in wanted(body, defaults) if manifest["kind"] == kind]
    return found


def deployment(body, defaults):
    return of_kind("Deployment", body, defaults)


def pod(body, defaults):
    return deployment(body, defaults)["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    "name",
    [
        "01-minimal",
        "02-cpu",
        "03-tensor-parallel",
        "05-guarded",
        "06-hugging-face",
        "11-image",
    ],
)
def test_the_manifests_of_the_examples(examples, engine_defaults, name):
    example = examples[f"{name}.yaml"]
    metadata = {"namespace": "team", "uid": "uid-1", "generation": 1, **example["metadata"]}
    manifests = wanted({**example, "metadata": metadata}, engine_defaults)
    for manifest in manifests:  # it repeats the template in one line
        manifest["metadata"]["annotations"].pop(TEMPLATE_ANNOTATION, None)
    text = yaml.safe_dump_all(manifests, sort_keys=False, width=100)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("OCTAVO_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")

    assert text == path.read_text(encoding="utf-8")


def test_every_child_is_owned_by_its_service(service_body, engine_defaults):
    for manifest in wanted(service_body(), engine_defaults):
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("InferenceService", "chat", "uid-1")
        assert owner["controller"] is True


def test_a_change_of_replicas_changes_no_pod(service_body, engine_defaults):
    one = deployment(service_body({"replicas": 1}), engine_defaults)
    two = deployment(service_body({"replicas": 2}), engine_defaults)

    assert one["spec"]["replicas"] == 1
    assert two["spec"]["replicas"] == 2
    assert one["spec"]["template"] == two["spec"]["template"]


def test_the_digest_changes_with_any_field(service_body, engine_defaults):
    def digest(body):
        return deployment(body, engine_defaults)["metadata"]["annotations"][APPLIED_ANNOTATION]

    assert digest(service_body()) == digest(service_body())
    assert digest(service_body()) != digest(service_body({"replicas": 2}))


@pytest.mark.parametrize(
    ("rollout", "steps"),
    [
        ({}, {"maxUnavailable": 0, "maxSurge": 1}),
        ({"maxSurge": 3}, {"maxUnavailable": 0, "maxSurge": 3}),
        ({"strategy": "surge"}, {"maxUnavailable": 0, "maxSurge": 1}),
        ({"strategy": "recreate"}, {"maxUnavailable": 1, "maxSurge": 0}),
    ],
)
def test_a_rollout_takes_a_replica_early_only_where_asked(
    service_body, engine_defaults, rollout, steps
):
    strategy = deployment(service_body({"rollout": rollout}), engine_defaults)["spec"]["strategy"]

    assert strategy == {"type": "RollingUpdate", "rollingUpdate": steps}


def test_the_grace_period_holds_the_drain(service_body, engine_defaults):
    spec = pod(service_body({"rollout": {"drainSeconds": 120}}), engine_defaults)
    pre_stop_s = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]

    assert spec["terminationGracePeriodSeconds"] >= pre_stop_s + 120 + 10


def test_the_pod_is_locked_down(service_body, engine_defaults):
    spec = pod(service_body(), engine_defaults)
    container = spec["containers"][0]["securityContext"]

    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["readOnlyRootFilesystem"] is True
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}


def test_the_model_is_mounted_read_only(service_body, engine_defaults):
    mounts = pod(service_body(), engine_defaults)["containers"][0]["volumeMounts"]

    assert {"name": "model", "mountPath": "/model", "readOnly": True} in mounts


def test_accelerators_are_requested_and_limited(service_body, engine_defaults):
    body = service_body(
        {"engine": {"tensorParallelSize": 2}, "resources": {"requests": {"cpu": "1"}}}
    )

    assert pod(body, engine_defaults)["containers"][0]["resources"] == {
        "requests": {"cpu": "1", "nvidia.com/gpu": "2"},
        "limits": {"nvidia.com/gpu": "2"},
    }


def test_ranks_share_memory_beyond_a_containers_own(service_body, engine_defaults):
    body = service_body({"engine": {"tensorParallelSize": 2}})

    volumes = pod(body, engine_defaults)["volumes"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in volumes


def test_the_services_image_wins(service_body, engine_defaults):
    assert pod(service_body(), engine_defaults)["containers"][0]["image"] == "octavo-engine:1"
    body = service_body({"image": "mine:2"})
    assert pod(body, engine_defaults)["containers"][0]["image"] == "mine:2"


def test_the_services_environment_wins(service_body, engine_defaults):
    body = service_body({"engine": {"env": [{"name": "HOME", "value": "/elsewhere"}]}})

    env = pod(body, engine_defaults)["containers"][0]["env"]
    assert env == [{"name": "HOME", "value": "/elsewhere"}]


def test_the_overlay_of_the_installation_lies_over_every_pod(service_body):
    overlay = {
        "metadata": {"annotations": {"team": "ml"}},
        "spec": {
            "runtimeClassName": "nvidia",
            "containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}]}],
        },
    }
    template = deployment(
        service_body(), EngineDefaults(image="octavo-engine:1", pod_overlay=overlay)
    )["spec"]["template"]

    assert template["metadata"]["annotations"]["team"] == "ml"
    assert template["metadata"]["labels"]["serving.octavo.dev/service"] == "chat"
    assert template["spec"]["runtimeClassName"] == "nvidia"
    assert template["spec"]["containers"][0]["image"] == "octavo-engine:1"
    assert {"name": "A", "value": "1"} in template["spec"]["containers"][0]["env"]


def test_the_service_and_the_deployment_select_the_pods(service_body, engine_defaults):
    service = of_kind("Service", service_body(), engine_defaults)
    deployed = deployment(service_body(), engine_defaults)
    labels = deployed["spec"]["template"]["metadata"]["labels"]

    assert service["spec"]["selector"].items() <= labels.items()
    assert deployed["spec"]["selector"]["matchLabels"].items() <= labels.items()
    key, _, value = children.label_selector("chat").partition("=")
    assert labels[key] == value

"""Where pods go, what they carry, and what is laid over them."""

import pytest

from octavo_operator import api
from octavo_operator.config import EngineDefaults
from octavo_operator.errors import InvalidService
from octavo_operator.pod_template import pod_template

DEFAULTS = EngineDefaults(image="octavo-engine:1")


@pytest.fixture
def template(service_body):
    def of(spec, defaults=DEFAULTS):
        return pod_template(api.parse(service_body(spec)), {"app": "own"}, defaults)

    return of


def test_a_product_is_a_nodes_label(template):
    accelerator = {"product": "NVIDIA-H200"}
    spec = template({"accelerator": accelerator, "nodeSelector": {"zone": "a"}})["spec"]

    assert spec["nodeSelector"] == {"zone": "a", "nvidia.com/gpu.product": "NVIDIA-H200"}


def test_another_vendors_label_can_be_named(template):
    accelerator = {"product": "MI300X", "productLabel": "amd.com/gpu.product-name"}

    assert template({"accelerator": accelerator})["spec"]["nodeSelector"] == {
        "amd.com/gpu.product-name": "MI300X"
    }


def test_affinity_goes_into_the_pod_as_it_is(template):
    terms = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    assert template({"affinity": affinity})["spec"]["affinity"] == affinity


def test_a_priority_class_is_named(template):
    assert template({"priorityClassName": "high"})["spec"]["priorityClassName"] == "high"


def test_no_probe_ends_a_replica_that_loads_within_its_time(template):
    """Liveness does not judge before the startup probe has passed, which waits for all of it."""
    rollout = {"progressDeadlineSeconds": 900}
    (engine,) = template({"rollout": rollout})["spec"]["containers"]
    startup = engine["startupProbe"]

    assert startup["httpGet"]["path"] == engine["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert startup["failureThreshold"] * startup["periodSeconds"] == 600
    assert engine["livenessProbe"]["httpGet"]["path"] == "/livez"


def test_what_is_not_asked_for_is_not_in_the_pod(template):
    placement = {"nodeSelector", "tolerations", "affinity", "priorityClassName"}

    assert not placement & set(template({})["spec"])


def test_the_services_template_lies_over_the_installations(template):
    defaults = EngineDefaults(
        image="octavo-engine:1",
        pod_overlay={"spec": {"runtimeClassName": "nvidia", "hostname": "h"}},
    )
    own = {
        "metadata": {"annotations": {"team": "ml"}, "labels": {"cost": "7"}},
        "spec": {
            "runtimeClassName": "other",
            "hostname": None,
            "containers": [
                {"name": "engine", "env": [{"name": "A", "value": "1"}]},
                {"name": "proxy", "image": "proxy:1"},
            ],
        },
    }
    made = template({"podTemplate": own}, defaults)
    spec = made["spec"]
    engine, proxy = spec["containers"]

    assert made["metadata"]["annotations"]["team"] == "ml"
    assert made["metadata"]["labels"] == {"app": "own", "cost": "7"}
    assert spec["runtimeClassName"] == "other"
    assert "hostname" not in spec
    assert engine["image"] == "octavo-engine:1"
    assert {"name": "A", "value": "1"} in engine["env"]
    assert proxy == {"name": "proxy", "image": "proxy:1"}


def test_an_item_without_its_key_is_refused(template):
    with pytest.raises(InvalidService, match="an item of containers has none of name"):
        template({"podTemplate": {"spec": {"containers": [{"image": "x"}]}}})


def test_api_keys_are_mounted_as_a_folder_so_that_changes_arrive(template):
    auth = {"apiKeysSecretRef": {"name": "keys", "key": "mine"}}
    spec = template({"auth": auth})["spec"]
    (engine,) = spec["containers"]
    (mount,) = [mount for mount in engine["volumeMounts"] if mount["name"] == "api-keys"]

    assert {
        "name": "api-keys",
        "secret": {"secretName": "keys", "items": [{"key": "mine", "path": "keys"}]},
    } in spec["volumes"]
    assert mount == {"name": "api-keys", "mountPath": "/etc/octavo/api-keys", "readOnly": True}
    assert "--api-key-file=/etc/octavo/api-keys/keys" in engine["args"]

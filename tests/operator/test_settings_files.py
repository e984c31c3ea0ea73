"""The ConfigMap of a service, and how pods come to have what is in it."""

import pytest

from octavo_operator import api, children
from octavo_operator.config import EngineDefaults

TEMPLATE = "{{ messages }}"


def manifests(service_body, engine):
    service = api.parse(service_body({"engine": engine}))
    made = children.wanted(service, 1, EngineDefaults(image="e"), "octavo-system")
    assert [kind.name for kind in children.kinds(service)] == [m["kind"] for m in made]
    return {manifest["kind"]: manifest for manifest in made}


def template(service_body, engine):
    return manifests(service_body, engine)["Deployment"]["spec"]["template"]


def test_a_chat_template_is_a_file_of_the_services_own_config_map(service_body):
    made = manifests(service_body, {"chatTemplate": TEMPLATE})

    assert made["ConfigMap"]["data"] == {"chat-template.jinja": TEMPLATE}
    pod = made["Deployment"]["spec"]["template"]["spec"]
    assert {"name": "settings", "configMap": {"name": "chat"}} in pod["volumes"]
    mounts = pod["containers"][0]["volumeMounts"]
    assert {"name": "settings", "mountPath": "/etc/octavo/settings", "readOnly": True} in mounts


def test_it_is_there_before_the_pods_that_mount_it(service_body):
    order = list(manifests(service_body, {"chatTemplate": TEMPLATE}))

    assert order.index("ConfigMap") < order.index("Deployment")


def test_a_service_without_files_has_none(service_body):
    made = manifests(service_body, {})

    assert "ConfigMap" not in made
    annotations = made["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert "serving.octavo.dev/settings" not in annotations


@pytest.mark.parametrize(("changed", "is_new_pod"), [(TEMPLATE, False), (TEMPLATE + " ", True)])
def test_a_changed_file_makes_new_pods(service_body, changed, is_new_pod):
    before = template(service_body, {"chatTemplate": TEMPLATE})
    after = template(service_body, {"chatTemplate": changed})

    assert (before != after) is is_new_pod

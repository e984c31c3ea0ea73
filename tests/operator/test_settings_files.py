"""The ConfigMap of a service, and how pods come to have what is in it."""

import pytest

from octavo_operator import api, children
from octavo_operator.config import EngineDefaults

TEMPLATE = "{{ messages }}"


def manifests(service_body, engine):
    service = api.parse(service_body({"engine": engine}))
    made = children.wanted(service, 1, EngineDefaults(image="e"), "octavo-system")
    assert [kind.name for kind, _ in children.names(service)] == [m["kind"] for m in made]
    return {manifest["kind"]: manifest for manifest in made}


def test_a_chat_template_is_a_file_of_a_config_map_that_never_changes(service_body):
    made = manifests(service_body, {"chatTemplate": TEMPLATE})

    assert made["ConfigMap"]["data"] == {"chat-template.jinja": TEMPLATE}
    assert made["ConfigMap"]["immutable"] is True
    name = made["ConfigMap"]["metadata"]["name"]
    assert name.startswith("chat-")
    pod = made["Deployment"]["spec"]["template"]["spec"]
    assert {"name": "settings", "configMap": {"name": name}} in pod["volumes"]
    mounts = pod["containers"][0]["volumeMounts"]
    assert {"name": "settings", "mountPath": "/etc/octavo/settings", "readOnly": True} in mounts


def test_it_is_there_before_the_pods_that_mount_it(service_body):
    order = list(manifests(service_body, {"chatTemplate": TEMPLATE}))

    assert order.index("ConfigMap") < order.index("Deployment")


def test_a_service_without_files_has_none(service_body):
    made = manifests(service_body, {})

    assert "ConfigMap" not in made
    volumes = made["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert "settings" not in [volume["name"] for volume in volumes]


@pytest.mark.parametrize(("changed", "is_new"), [(TEMPLATE, False), (TEMPLATE + " ", True)])
def test_a_changed_file_makes_new_pods_and_a_map_beside_the_old_one(service_body, changed, is_new):
    before = manifests(service_body, {"chatTemplate": TEMPLATE})
    after = manifests(service_body, {"chatTemplate": changed})

    templates = [made["Deployment"]["spec"]["template"] for made in (before, after)]
    assert (templates[0] != templates[1]) is is_new
    names = {made["ConfigMap"]["metadata"]["name"] for made in (before, after)}
    assert len(names) == 1 + is_new

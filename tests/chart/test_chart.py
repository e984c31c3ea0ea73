"""What the chart makes of its values.

The rendered defaults are a golden file, for a reviewer's eye. After a change on purpose:
OCTAVO_UPDATE_GOLDEN=1 pytest tests/chart
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from octavo_operator import config

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "charts" / "octavo"
GOLDEN = Path(__file__).parent / "golden" / "defaults.yaml"


def of_kind(objects, kind):
    return [found for found in objects if found["kind"] == kind]


def rules(objects):
    roles = of_kind(objects, "Role") + of_kind(objects, "ClusterRole")
    return [rule for role in roles for rule in role["rules"]]


def operator_config(objects, tmp_path):
    maps = of_kind(objects, "ConfigMap")
    (settings,) = [found for found in maps if "operator.yaml" in found["data"]]
    path = tmp_path / "operator.yaml"
    path.write_text(settings["data"]["operator.yaml"], encoding="utf-8")
    return config.load(path)


def is_dashboard(found):
    return "grafana_dashboard" in found["metadata"].get("labels", {})


def test_the_defaults(render):
    objects = [
        found
        for found in render()
        if found["kind"] != "CustomResourceDefinition" and not is_dashboard(found)
    ]
    text = yaml.safe_dump_all(objects, sort_keys=False, width=100)
    if os.environ.get("OCTAVO_UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")

    assert text == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("script", ["crds/generate_reference.py", "charts/generate_docs.py"])
def test_generated_files_are_not_stale(script):
    result = subprocess.run(
        [sys.executable, REPOSITORY / script, "--check"], capture_output=True, text=True, timeout=60
    )

    assert result.returncode == 0, result.stderr


def test_the_dashboard_is_where_grafanas_sidecar_finds_it(render):
    (found,) = filter(is_dashboard, render())

    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = (CHART / "dashboards" / "service.json").read_text(encoding="utf-8")
    assert json.loads(found["data"]["service.json"]) == json.loads(dashboard)


def test_dashboards_can_be_left_out_or_labelled_otherwise(render):
    assert not list(filter(is_dashboard, render({"dashboards": {"install": False}})))
    (found,) = filter(is_dashboard, render({"dashboards": {"labels": {"team": "ml"}}}))
    assert found["metadata"]["labels"]["team"] == "ml"


def test_the_crd_is_installed_and_kept(render):
    (crd,) = of_kind(render(), "CustomResourceDefinition")

    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    source = (REPOSITORY / "crds" / "inferenceservices.yaml").read_text(encoding="utf-8")
    assert crd == yaml.safe_load(source)


def test_the_crd_can_be_left_to_others(render):
    assert of_kind(render({"crds": {"install": False}}), "CustomResourceDefinition") == []


def test_the_operator_understands_its_settings(render, tmp_path):
    overlay = {"spec": {"containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}]}]}}
    values = {
        "engine": {"image": "e:2", "podOverlay": overlay, "deviceWithAccelerator": "cpu"},
        "watchNamespaces": ["a", "b"],
        "resyncSeconds": 60,
    }
    loaded = operator_config(render(values), tmp_path)

    assert loaded.engine.image == "e:2"
    assert loaded.engine.pod_overlay == overlay
    assert loaded.engine.device_with_accelerator == "cpu"
    assert loaded.watch_namespaces == ("a", "b")
    assert loaded.resync_seconds == 60


def test_the_chart_and_the_operator_have_the_same_defaults(render, tmp_path):
    loaded = operator_config(render(), tmp_path)
    bare = config.OperatorConfig(engine=config.EngineDefaults(image=loaded.engine.image))

    assert loaded == bare


def test_new_settings_make_new_pods(render):
    def checksum(values):
        (deployment,) = of_kind(render(values), "Deployment")
        return deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    assert checksum({}) == checksum({})
    assert checksum({}) != checksum({"resyncSeconds": 60})


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["a"]}])
def test_the_role_is_narrow(render, values):
    for rule in rules(render(values)):
        assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
        assert not {"secrets", "pods/exec"} & set(rule["resources"])
        assert not {"deletecollection", "escalate", "bind", "impersonate"} & set(rule["verbs"])


def verbs(objects, resource):
    return {
        verb for rule in rules(objects) if resource in rule["resources"] for verb in rule["verbs"]
    }


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["a"]}])
def test_only_what_a_setting_leaves_behind_may_be_deleted(render, values):
    resources = {one for rule in rules(render(values)) for one in rule["resources"]}
    deletable = {one for one in resources if "delete" in verbs(render(values), one)}

    assert deletable == {"configmaps", "podmonitors"}


def test_pod_monitors_can_be_left_out_with_the_right_to_make_them(render, tmp_path):
    objects = render({"podMonitors": {"install": False}})

    assert {"create", "patch"} <= verbs(render(), "podmonitors")
    assert verbs(objects, "podmonitors") == {"list", "watch", "delete"}, "those of before go"
    assert operator_config(objects, tmp_path).pod_monitors.install is False


def test_evictions_can_be_left_out_with_the_right_to_them(render, tmp_path):
    objects = render({"evictAfterGpuFaults": False})

    assert verbs(render(), "pods/eviction") == {"create"}
    assert verbs(objects, "pods/eviction") == set()
    assert operator_config(objects, tmp_path).evict_after_gpu_faults is False


def test_what_prometheus_needs_reaches_the_operator(render, tmp_path):
    values = {"labels": {"release": "prometheus"}, "allowedNamespaces": ["monitoring"]}
    loaded = operator_config(render({"podMonitors": values}), tmp_path).pod_monitors

    assert loaded.labels == {"release": "prometheus"}
    assert loaded.allowed_namespaces == ("monitoring",)


def test_a_namespaced_install_asks_for_nothing_in_the_cluster(render):
    objects = render({"watchNamespaces": ["a", "b"]})

    assert of_kind(objects, "ClusterRole") == []
    assert of_kind(objects, "ClusterRoleBinding") == []
    assert {role["metadata"]["namespace"] for role in of_kind(objects, "Role")} == {
        "a",
        "b",
        "octavo-system",
    }


def test_the_lease_that_is_used_is_the_lease_that_is_granted(render, tmp_path):
    objects = render()
    granted = [name for rule in rules(objects) for name in rule.get("resourceNames", [])]

    assert granted == [operator_config(objects, tmp_path).lease.name]


def test_the_operators_pod_is_locked_down(render):
    (deployment,) = of_kind(render(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"name": "LOGNAME", "value": "octavo"} in container["env"]


def test_the_image_has_the_charts_version(render):
    (deployment,) = of_kind(render(), "Deployment")
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == f"localhost/octavo-operator:{chart['appVersion']}"


def test_the_version_is_the_distributions(request):
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")

    found = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    assert found is not None
    assert chart["appVersion"] == chart["version"] == found.group(1)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"replica": 1}, "replica"),
        ({"replicas": "two"}, "replicas"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"engine": {"podOverlay": {"kind": "Pod"}}}, "kind"),
        ({"engine": {"deviceWithAccelerator": "tpu"}}, "deviceWithAccelerator"),
        ({"watchNamespaces": ["A"]}, "watchNamespaces"),
        ({"logLevel": "loud"}, "logLevel"),
        ({"lease": {"durationSeconds": 0}}, "durationSeconds"),
        ({"workers": 0}, "workers"),
        ({"podMonitors": {"labels": {"a": 1}}}, "podMonitors"),
    ],
)
def test_a_wrong_value_is_refused_by_name(try_render, values, word):
    result = try_render(values)

    assert result.returncode != 0
    assert "values don't meet the specifications of the schema" in result.stderr
    assert word in result.stderr


def test_every_value_is_in_the_schema_and_in_a_template():
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))
    templates = "".join(
        path.read_text(encoding="utf-8") for path in sorted((CHART / "templates").iterdir())
    )

    assert set(values) == set(schema["properties"]) - {"global"}
    for name in values:
        assert re.search(rf"\.Values\.{name}\b", templates), name


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["default"]}])
@pytest.mark.cluster
def test_a_real_api_server_accepts_what_the_chart_makes(api_server, render, values):
    objects = [found for found in render(values) if found["kind"] != "CustomResourceDefinition"]
    for found in objects:
        if "namespace" in found["metadata"]:
            found["metadata"]["namespace"] = "default"
    result = subprocess.run(
        [
            *(api_server.kubectl, f"--kubeconfig={api_server.kubeconfig}"),
            *("apply", "--dry-run=server", "--validate=strict", "--filename=-"),
        ],
        input=yaml.safe_dump_all(objects),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert result.returncode == 0, result.stderr

"""The PodMonitor that a service gets."""

from octavo_operator import api, children
from octavo_operator.config import EngineDefaults, PodMonitorSettings
from octavo_operator.kinds import POD_MONITOR
from octavo_operator.pod_monitor import pod_monitor


def made(service_body, **settings):
    return pod_monitor(api.parse(service_body()), PodMonitorSettings(**settings))


def test_it_reads_the_port_that_the_pods_name(service_body):
    spec = made(service_body)["spec"]
    service = api.parse(service_body())
    wanted = children.wanted(service, 1, EngineDefaults(image="e"), "octavo-system")
    (container,) = wanted[-1]["spec"]["template"]["spec"]["containers"]

    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["port"] in [port["name"] for port in container["ports"]]
    assert spec["selector"] == {"matchLabels": {"serving.octavo.dev/service": "chat"}}


def test_a_prometheus_chooses_it_by_labels_that_take_none_of_ours(service_body):
    labels = {"release": "prometheus", "app.kubernetes.io/managed-by": "me"}
    found = made(service_body, labels=labels)["metadata"]["labels"]

    assert found["release"] == "prometheus"
    assert found["app.kubernetes.io/managed-by"] == "octavo-operator"


def test_it_comes_last_and_only_where_its_kind_is_served(service_body):
    service = api.parse(service_body())
    defaults, settings = EngineDefaults(image="e"), PodMonitorSettings()
    without = children.wanted(service, 1, defaults, "octavo-system", settings)
    found = children.wanted(service, 1, defaults, "octavo-system", settings, (POD_MONITOR,))

    assert "PodMonitor" not in [manifest["kind"] for manifest in without]
    assert found[:-1] == without
    assert found[-1]["kind"] == "PodMonitor"

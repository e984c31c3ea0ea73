"""What guards the pods of a service."""

import pytest

from octavo_operator import api, policies


@pytest.fixture
def ingress(service_body):
    def of(network):
        service = api.parse(service_body({"network": network}))
        return policies.network_policy(service, "octavo-system")["spec"]["ingress"]

    return of


def namespaces(rule):
    return [
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for peer in rule["from"]
        if "namespaceSelector" in peer
    ]


def test_by_default_only_its_own_namespace_and_the_operators_come_in(ingress):
    (rule,) = ingress({})

    assert {"podSelector": {}} in rule["from"]
    assert namespaces(rule) == ["octavo-system"]
    assert rule["ports"] == [{"port": 8000, "protocol": "TCP"}]


def test_further_namespaces_are_let_in_by_name(ingress):
    (rule,) = ingress({"allowedNamespaces": ["web", "octavo-system", "monitoring"]})

    assert namespaces(rule) == ["monitoring", "octavo-system", "web"]


def test_those_who_read_metrics_are_let_in(service_body):
    service = api.parse(service_body({"network": {"allowedNamespaces": ["web"]}}))
    spec = policies.network_policy(service, "octavo-system", ("monitoring",))["spec"]

    assert namespaces(spec["ingress"][0]) == ["monitoring", "octavo-system", "web"]


def test_an_open_service_lets_everybody_in(ingress):
    assert ingress({"isolated": False}) == [{}]


def test_a_drain_takes_one_replica_at_a_time_and_is_never_held_up_for_ever(service_body):
    spec = policies.disruption_budget(api.parse(service_body()))["spec"]

    assert spec["maxUnavailable"] == 1
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_no_drain_takes_a_replica_on_its_way_that_the_service_lacks(service_body):
    service = api.parse(service_body())
    spec = policies.disruption_budget(service, protects_start=True)["spec"]

    assert spec["maxUnavailable"] == 0
    assert spec["unhealthyPodEvictionPolicy"] == "IfHealthyBudget"


def test_both_select_the_services_pods(service_body):
    service = api.parse(service_body())
    label = {"matchLabels": {"serving.octavo.dev/service": "chat"}}

    assert policies.network_policy(service, "a")["spec"]["podSelector"] == label
    assert policies.disruption_budget(service)["spec"]["selector"] == label

"""The chart's Role against the API server's own record of what the operator asked it."""

from dataclasses import dataclass
from typing import Any

import pytest
from tests.cluster import audit
from tests.operator.cluster_operator import (
    OperatorProcess,
    answer,
    has_reason,
    make_ready,
    pods,
    roles,
    service,
    set_status,
    wait_for_pods,
)

pytestmark = pytest.mark.cluster

NO_CALLS = {("serving.octavo.dev", "inferenceservices/finalizers", "update")}
"""Asked for by OwnerReferencesPermissionEnforcement, which is on in some distributions only, when a
child with blockOwnerDeletion is applied."""


@dataclass(frozen=True)
class Install:
    kubectl: Any
    operator: OperatorProcess
    manifests: list[dict[str, Any]]
    """Of the chart: ServiceAccount, Roles, bindings."""
    audit_log: Any

    def calls(self):
        return audit.calls(self.audit_log, self.kubectl.namespace, "octavo-operator")

    def refused(self):
        calls = audit.refused(self.audit_log, self.kubectl.namespace, "octavo-operator")
        return {call.right for call in calls}

    def granted(self):
        return {
            (group, resource, verb)
            for role in self.manifests
            for rule in role.get("rules", [])
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }


@pytest.fixture(params=["namespaced", "cluster-wide"])
def install(request, api_server, kubectl, pod_monitors_served, tmp_path):
    if api_server.audit_log is None:
        pytest.skip("this cluster shows no audit log: needs the local provider")
    cluster_wide = request.param == "cluster-wide"
    manifests = roles(api_server, kubectl.namespace, cluster_wide=cluster_wide)
    kubectl.apply(*manifests)
    operator = OperatorProcess(api_server, kubectl, tmp_path, "only")
    operator.start(**({"watchNamespaces": []} if cluster_wide else {}))
    yield Install(kubectl, operator, manifests, api_server.audit_log)
    operator.kill()
    for manifest in manifests:
        if manifest["kind"].startswith("Cluster"):
            kubectl("delete", manifest["kind"], manifest["metadata"]["name"])


def test_the_role_is_what_is_used_and_no_more(install):
    kubectl = install.kubectl
    make_ready(kubectl)
    make_one_of_each_other_child(kubectl)
    kubectl("delete", "service", "chat")
    kubectl.wait_until("back", lambda: kubectl.tried("get", "service", "chat").returncode == 0)
    flap(kubectl)
    let_a_pod_wait_for_its_volumes(kubectl)

    def unused():
        return install.granted() - NO_CALLS - {call.right for call in install.calls()}

    kubectl.wait_until(f"used: {unused()}", lambda: not unused())
    assert install.refused() == set()


@pytest.mark.parametrize("install", ["namespaced"], indirect=True)
def test_a_right_that_the_role_lacks_is_on_record(install):
    """The comparison above can fail: a call that is refused is seen in the log."""
    kubectl = install.kubectl
    role = next(one for one in install.manifests if "deployments" in str(one.get("rules")))
    rules = [rule for rule in role["rules"] if "deployments" not in rule["resources"]]
    kubectl.apply({**role, "rules": rules})
    kubectl.apply(service())

    def refused_resources():
        return {resource for _, resource, _ in install.refused()}

    kubectl.wait_until("refused", lambda: "deployments" in refused_resources())


def make_one_of_each_other_child(kubectl):
    """A claim, a ConfigMap, a StatefulSet."""
    model = {"uri": "hf://org/name", "cache": {"newClaim": {"size": "1Mi"}}}
    kubectl.apply(service("fetched", model=model, engine={"chatTemplate": "{{ messages }}"}))
    kubectl.wait_until("a claim", lambda: not kubectl.tried("get", "pvc", "fetched").returncode)
    model["cache"]["newClaim"]["perReplica"] = True
    kubectl.apply(service("kept", model=model))
    kubectl.wait_until("a set", lambda: not kubectl.tried("get", "sts", "kept").returncode)


def flap(kubectl):
    """Says again by an Event what was said shortly before."""
    (pod,) = pods(kubectl)
    answer(kubectl, pod, is_ready=False)
    kubectl.wait_until("lost", has_reason(kubectl, "MinimumReplicasUnavailable"))
    answer(kubectl, pod)
    kubectl.wait_until("back", has_reason(kubectl, "AllReplicasReady"))


def let_a_pod_wait_for_its_volumes(kubectl):
    kubectl("scale", "osvc/chat", "--replicas=2")
    for pod in wait_for_pods(kubectl, 2):
        if not any(c["type"] == "Ready" for c in pod["status"]["conditions"]):
            conditions = [
                {"type": "PodScheduled", "status": "True"},
                {"type": "PodReadyToStartContainers", "status": "False"},
            ]
            set_status(kubectl, pod, {"conditions": conditions})

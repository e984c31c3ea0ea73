"""The chart's Role against the API server's own record of what the operator asked it."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from tests.cluster import audit
from tests.operator.cluster_operator import (
    OperatorProcess,
    answer,
    fault,
    has_reason,
    make_ready,
    name_of,
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
    watched: dict[str, Any]
    """Settings of the operator: none for its own namespace."""
    manifests: list[dict[str, Any]]
    """Of the chart: ServiceAccount, Roles, bindings."""
    audit_log: Any

    def start(self, **settings):
        self.operator.start(**self.watched, **settings)

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
    watched = {"watchNamespaces": []} if cluster_wide else {}
    made = Install(kubectl, operator, watched, manifests, api_server.audit_log)
    made.start()
    yield made
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
    keep_a_broken_accelerator(kubectl)
    let_a_pod_wait_for_its_volumes(kubectl)
    take_a_chat_template_away(kubectl)
    install.operator.stop()
    install.start(podMonitors={"install": False})

    def unused():
        return install.granted() - NO_CALLS - {call.right for call in install.calls()}

    kubectl.wait_until(lambda: f"used: {unused()}", lambda: not unused())
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


def take_a_chat_template_away(kubectl):
    patch = {"spec": {"engine": {"chatTemplate": None}, "replicas": 0}}
    kubectl("patch", "osvc", "fetched", "--type=merge", f"--patch={json.dumps(patch)}")


def keep_a_broken_accelerator(kubectl):
    pod = pods(kubectl)[0]
    fault(kubectl, pod)
    kubectl.wait_until("it goes", lambda: name_of(pod) not in map(name_of, pods(kubectl)))


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

"""Who gets through to a replica where the network enforces policies: clients, operator, kubelet."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby

import pytest
import yaml
from tests.cluster import policies, programs
from tests.cluster.errors import CommandFailed
from tests.e2e import walk
from tests.e2e.stage import SERVICE, Stage

pytestmark = pytest.mark.cluster

FRIENDS, STRANGERS = "octavo-test-friends", "octavo-test-strangers"
ASK = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=2).status)
"""


@pytest.fixture
def guarded(stage: Stage) -> Iterator[Stage]:
    """A stage whose nodes enforce policies, with a client in each of three namespaces."""
    prefix = stage.cluster.node_prefix
    kube_router = programs.obtain_policy_enforcer(say=print)
    others = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in (FRIENDS, STRANGERS)
    ]
    enforcing = policies.manifests(kube_router, node_prefix=prefix)
    clients = [
        policies.client_pod(namespace, node_prefix=prefix)
        for namespace in (stage.namespace, FRIENDS, STRANGERS)
    ]
    _apply(stage, others)
    try:
        _apply(stage, [*enforcing, *clients])
        enforced = ("rollout", "status", f"daemonset/{policies.NAME}", "--timeout=60s")
        stage.kubectl(f"--namespace={policies.NAMESPACE}", *enforced)
        for namespace in (stage.namespace, FRIENDS, STRANGERS):
            ready = ("wait", "pod/client", "--for=condition=Ready", "--timeout=60s")
            stage.kubectl(f"--namespace={namespace}", *ready)
        yield stage
    finally:
        stage.kubectl("delete", "--ignore-not-found", SERVICE)
        _in_their_namespaces(stage, [*clients, *others], "delete")
        _in_their_namespaces(stage, enforcing, "delete", "--cascade=foreground")


def test_a_replica_is_reached_by_those_whom_its_policy_names(guarded: Stage) -> None:
    service = yaml.safe_load(walk.EXAMPLE.read_text(encoding="utf-8"))
    service["spec"]["network"] = {"allowedNamespaces": [FRIENDS]}
    _apply(guarded, [service])

    guarded.wait_ready()  # the kubelet's probes get through
    guarded.wait("strangers refused", lambda: not _is_answered(guarded, STRANGERS))
    assert _is_answered(guarded, FRIENDS)
    assert _is_answered(guarded, guarded.namespace)
    # Read from the replica's metrics by the operator, whose namespace the user need not name.
    guarded.wait("metrics read", lambda: "engineMilliseconds" in _startup(guarded))

    opened = {"spec": {"network": {"isolated": False, "allowedNamespaces": None}}}
    guarded.kubectl("patch", SERVICE, "--type=merge", f"--patch={json.dumps(opened)}")
    guarded.wait("open to all", lambda: _is_answered(guarded, STRANGERS))


def _is_answered(stage: Stage, namespace: str) -> bool:
    url = f"http://smollm2.{stage.namespace}.svc/v1/models"
    asking = ("exec", "client", "--", sys.executable, "-c", ASK, url)
    try:
        return stage.kubectl(f"--namespace={namespace}", *asking).strip() == "200"
    except CommandFailed as error:
        if not any(words in str(error) for words in ("timed out", "Connection refused")):
            raise
        return False  # networks differ in whether they drop or reject


def _startup(stage: Stage) -> dict[str, object]:
    found: dict[str, object] = stage.get(SERVICE)["status"].get("startup", {})
    return found


def _apply(stage: Stage, manifests: Sequence[policies.Manifest]) -> None:
    _in_their_namespaces(stage, manifests, "apply")


def _in_their_namespaces(stage: Stage, manifests: Sequence[policies.Manifest], *words: str) -> None:
    """kubectl takes manifests of the one namespace that it is told."""
    for namespace, of_one in groupby(manifests, lambda one: one["metadata"].get("namespace")):
        items = {"apiVersion": "v1", "kind": "List", "items": list(of_one)}
        where = f"--namespace={namespace or stage.namespace}"
        stage.kubectl(where, *words, "--filename=-", stdin=json.dumps(items))

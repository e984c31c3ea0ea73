"""Enforces NetworkPolicies in a cluster: kube-router's firewall on each node.

Only where a test asks for it: while it runs, this machine reaches no pod that a policy guards, as
little as anything else that is no pod of an allowed namespace.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from tests.cluster import hostenv

Manifest = dict[str, Any]

NAMESPACE = "kube-system"
NAME = "octavo-test-policies"
_HEALTH_PORT = 20244
_ALTERNATIVES = "/etc/alternatives"
"""Where Debian's iptables is a link to."""
_WATCHED = ("namespaces", "pods", "services", "nodes", "endpoints")


def manifests(kube_router: Path, *, node_prefix: str = "") -> list[Manifest]:
    """A DaemonSet of it, with the rights it needs. `kube_router`: the program on this machine."""
    metadata = {"name": NAME, "namespace": NAMESPACE}
    subject = {"kind": "ServiceAccount", **metadata}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAME},
            "rules": [
                _reads("", *_WATCHED),
                _reads("networking.k8s.io", "networkpolicies"),
                _reads("discovery.k8s.io", "endpointslices"),
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": role,
            "subjects": [subject],
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": metadata,
            "spec": {
                "selector": {"matchLabels": {"app": NAME}},
                "template": {
                    "metadata": {"labels": {"app": NAME}},
                    "spec": _pod(kube_router, node_prefix),
                },
            },
        },
    ]


def client_pod(namespace: str, *, node_prefix: str = "") -> Manifest:
    """One that does nothing until something is executed in it, with this machine's Python."""
    spec = _of_this_machine(node_prefix)
    spec["containers"][0]["command"] = ["/bin/sleep", "3600"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "client", "namespace": namespace},
        "spec": {**spec, "terminationGracePeriodSeconds": 0},
    }


def _pod(kube_router: Path, node_prefix: str) -> Manifest:
    spec = _of_this_machine(node_prefix)
    spec["volumes"] += [
        {"name": "program", "hostPath": {"path": f"{node_prefix}{kube_router.parent}"}},
        {"name": "alternatives", "hostPath": {"path": f"{node_prefix}{_ALTERNATIVES}"}},
        {"name": "run", "emptyDir": {}},
    ]
    (container,) = spec["containers"]
    container["volumeMounts"] += [
        {"name": "program", "mountPath": "/program", "readOnly": True},
        {"name": "alternatives", "mountPath": _ALTERNATIVES, "readOnly": True},
        {"name": "run", "mountPath": "/run"},  # for the lock of iptables
    ]
    container["env"] = [
        {"name": "PATH", "value": "/usr/sbin:/usr/bin:/sbin:/bin"},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    program_path = f"/program/{kube_router.name}"
    container["command"] = [
        program_path,
        *("--run-firewall=true", "--run-router=false", "--run-service-proxy=false"),
        *("--run-loadbalancer=false", "--enable-cni=false", "--enable-ipv6=false"),
        *("--hostname-override=$(NODE_NAME)", f"--health-port={_HEALTH_PORT}"),
    ]
    # Ready after the first whole pass over rules, addresses and policies.
    health = {"path": "/healthz", "port": _HEALTH_PORT, "host": "127.0.0.1"}
    container["readinessProbe"] = {"httpGet": health, "periodSeconds": 1}
    container["securityContext"] = {"privileged": True, "runAsUser": 0}
    # Its rules would outlive it, and meet the next pod that gets the address of a guarded one.
    cleanup = {"exec": {"command": [program_path, "--cleanup-config"]}}
    container["lifecycle"] = {"preStop": cleanup}
    return {
        **spec,
        "hostNetwork": True,
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": 20,
    }


def _of_this_machine(node_prefix: str) -> Manifest:
    spec: Manifest = copy.deepcopy(hostenv.engine_overlay(node_prefix=node_prefix)["spec"])
    spec["containers"][0] |= {"image": hostenv.ENGINE_IMAGE, "imagePullPolicy": "Never"}
    return spec


def _reads(group: str, *resources: str) -> Manifest:
    return {
        "apiGroups": [group],
        "resources": list(resources),
        "verbs": ["get", "list", "watch"],
    }

"""The command lines of etcd and the three components of the control plane. Starts nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.pki import Identity, Pki
from tests.cluster.supervisor import Daemon

AUDIT_LOG = "audit.log"


@dataclass(frozen=True)
class ControlPlane:
    """Where the control plane listens and keeps its data.

    `address` is what kubeconfigs name. With `for_nodes` the API server also advertises it to pods
    and speaks to kubelets; without, everything stays on loopback.
    """

    binaries: Path
    data: Path
    pki: Pki
    address: str
    api_port: int
    etcd_port: int
    service_cidr: str
    service_ip: str
    for_nodes: bool

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.api_port}"

    def identities(self) -> list[Identity]:
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
        hosts = (*names, "kubernetes.default.svc.cluster.local", "127.0.0.1", self.service_ip)
        serving = hosts if self.address in hosts else (*hosts, self.address)
        return [
            Identity("apiserver", "kube-apiserver", "octavo", serving),
            Identity("apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters"),
            Identity("admin", "octavo-admin", "system:masters"),
            Identity("controller-manager", "system:kube-controller-manager", "octavo"),
            Identity("scheduler", "system:kube-scheduler", "octavo"),
        ]

    @property
    def audit_log(self) -> Path:
        """A line of JSON for each call that a ServiceAccount of the cluster's users made."""
        return self.data / AUDIT_LOG

    @property
    def _audit_policy(self) -> Path:
        return self.data / "audit-policy.json"

    def write_config(self) -> None:
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
                {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
                {"level": "None"},
            ],
        }
        self._audit_policy.write_text(json.dumps(policy, indent=1))

    def daemons(self) -> list[Daemon]:
        etcd, api = f"127.0.0.1:{self.etcd_port}", f"{self.address}:{self.api_port}"
        return [
            Daemon("etcd", self._etcd()),
            Daemon("kube-apiserver", self._apiserver(), after=etcd),
            Daemon("kube-controller-manager", self._controller_manager(), after=api),
            Daemon("kube-scheduler", self._scheduler(), after=api),
        ]

    def _etcd(self) -> tuple[str, ...]:
        client, peer = (f"http://127.0.0.1:{self.etcd_port + n}" for n in (0, 1))
        return (
            str(self.binaries / "etcd"),
            "--name=e",
            f"--data-dir={self.data / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=e={peer}",
            # A test cluster outlives no power cut; fsync would make the disk its clock.
            "--unsafe-no-fsync",
        )

    def _apiserver(self) -> tuple[str, ...]:
        pki = self.pki
        reach = (
            (f"--bind-address={self.address}", f"--advertise-address={self.address}")
            if self.for_nodes
            # A loopback address may not be an endpoint, and there are no pods that would ask for
            # it.
            else (f"--bind-address={self.address}", "--endpoint-reconciler-type=none")
        )
        return (
            str(self.binaries / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--secure-port={self.api_port}",
            *reach,
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--audit-policy-file={self._audit_policy}",
            f"--audit-log-path={self.audit_log}",
            f"--client-ca-file={pki.ca}",
            f"--tls-cert-file={pki.certificate('apiserver')}",
            f"--tls-private-key-file={pki.key('apiserver')}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={pki.service_accounts}",
            f"--service-account-signing-key-file={pki.service_accounts}",
            f"--service-cluster-ip-range={self.service_cidr}",
            f"--kubelet-client-certificate={pki.certificate('apiserver-kubelet')}",
            f"--kubelet-client-key={pki.key('apiserver-kubelet')}",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
        )

    def _controller_manager(self) -> tuple[str, ...]:
        return (
            str(self.binaries / "kube-controller-manager"),
            *self._own_kubeconfig("controller-manager"),
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.pki.service_accounts}",
            f"--root-ca-file={self.pki.ca}",
            f"--cluster-signing-cert-file={self.pki.ca}",
            f"--cluster-signing-key-file={self.pki.ca_key}",
            # Half of the default: a lost node is noticed in half a minute, see also the kubelet's
            # lease.
            "--node-monitor-grace-period=24s",
            "--secure-port=0" if not self.for_nodes else "--bind-address=127.0.0.1",
        )

    def _scheduler(self) -> tuple[str, ...]:
        return (
            str(self.binaries / "kube-scheduler"),
            *self._own_kubeconfig("scheduler"),
            "--secure-port=0" if not self.for_nodes else "--bind-address=127.0.0.1",
        )

    def _own_kubeconfig(self, identity: str) -> tuple[str, ...]:
        path = self.kubeconfig(identity)
        return (
            f"--kubeconfig={path}",
            f"--authentication-kubeconfig={path}",
            f"--authorization-kubeconfig={path}",
            "--leader-elect=false",
        )

    def kubeconfig(self, identity: str) -> Path:
        """Where the kubeconfig of one of `identities()` is kept."""
        return self.pki.folder / f"{identity}.kubeconfig"

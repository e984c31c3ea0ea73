"""What one node runs and how it is configured: containerd, kubelet, kube-proxy. Starts nothing.

A node has a mount namespace of its own, so everything sits at its usual path: the kubelet in
/var/lib/kubelet, containerd's socket in /run/containerd. `node_setup.py` makes it so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.network import Network
from tests.cluster.pki import Identity, Pki
from tests.cluster.supervisor import Daemon

PAUSE_IMAGE = "localhost/pause:1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
# A node that misses its lease for 24 s (control_plane.py) is lost; it renews every quarter of this.
_LEASE_S = 16


@dataclass(frozen=True)
class Node:
    """One node of a local cluster, counted from 0; `folder` is its folder on the host."""

    node_idx: int
    folder: Path
    binaries: Path
    pki: Pki
    network: Network
    api_url: str
    cgroup: str
    cni_binaries: Path

    @property
    def name(self) -> str:
        return f"node{self.node_idx + 1}"

    @property
    def ip(self) -> str:
        return self.network.node_ip(self.node_idx)

    def identities(self) -> list[Identity]:
        user = f"system:node:{self.name}"
        return [Identity(self.name, user, "system:nodes", (self.name, self.ip, "127.0.0.1"))]

    def daemons(self) -> list[Daemon]:
        api = self.api_url.removeprefix("https://")
        config = self.folder / "config"
        kubelet = (
            str(self.binaries / "kubelet"),
            f"--config={config / 'kubelet.json'}",
            f"--kubeconfig={self.pki.folder / f'{self.name}.kubeconfig'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.ip}",
        )
        containerd = (str(self.binaries / "containerd"), f"--config={config / 'containerd.toml'}")
        proxy = (str(self.binaries / "kube-proxy"), f"--config={config / 'kube-proxy.json'}")
        return [
            Daemon("containerd", containerd),
            Daemon("kubelet", kubelet, after=api),
            Daemon("kube-proxy", proxy, after=api),
        ]

    def write_config(self) -> None:
        config = self.folder / "config"
        (config / "cni").mkdir(parents=True, exist_ok=True)
        (config / "kubelet.json").write_text(json.dumps(self._kubelet(), indent=1))
        (config / "kube-proxy.json").write_text(json.dumps(self._proxy(), indent=1))
        (config / "containerd.toml").write_text(self._containerd())
        (config / "cni" / "10-octavo.conflist").write_text(json.dumps(self._cni(), indent=1))

    def _kubelet(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.pki.ca)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(self.pki.certificate(self.name)),
            "tlsPrivateKeyFile": str(self.pki.key(self.name)),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            # Without CAP_SYS_RESOURCE neither may be raised, and asking for it is fatal.
            "oomScoreAdj": 0,
            "maxOpenFiles": 10000,
            "clusterDNS": [self.network.dns_ip],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "nodeLeaseDurationSeconds": _LEASE_S,
            "nodeStatusUpdateFrequency": "4s",
            # The disk is the developer's own: neither evict nor delete images because it is full.
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }

    def _proxy(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.pki.folder / "kube-proxy.kubeconfig")},
            "hostnameOverride": self.name,
            "mode": "iptables",
            # Whatever comes by another interface than a pod's is masqueraded, so that answers to
            # this machine come back the way the question went.
            "detectLocalMode": "InterfaceNamePrefix",
            "detectLocal": {"interfaceNamePrefix": "veth"},
            # Zero leaves the machine's own connection tracking limits alone.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
        }

    def _containerd(self) -> str:
        return f"""\
version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{self.cni_binaries}"]
    conf_dir = "{self.folder / "config" / "cni"}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    runtime_path = "{self.binaries / "containerd-shim-runc-v2"}"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""

    def _cni(self) -> dict[str, Any]:
        """Routed pods (ptp): a bridge would need br_netfilter for Services between its ports."""
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": self.network.pod_cidr(self.node_idx)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        return {
            "cniVersion": "0.4.0",
            "name": "octavo",
            "plugins": [
                {"type": "ptp", "ipMasq": False, "ipam": ipam},
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }

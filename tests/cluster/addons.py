"""What a bare cluster lacks: names for Services, and GPUs on its nodes.

Run as `python -m tests.cluster.addons KUBECONFIG HOSTS_FILE PIDS_FILE NUM_GPUS` beside dnsmasq,
which reads HOSTS_FILE again at SIGHUP. Whatever changes, the same `Addons.sync` follows. The
decisions are the pure functions at the top; the API server's objects come in as plain dictionaries.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kubernetes.aio import client, config, watch

GPU_RESOURCE = "nvidia.com/gpu"
_DOMAIN = "svc.cluster.local"
_SETTLE_S = 0.05
_WATCH_S = 300
_RETRY_S = 1.0

Manifest = dict[str, Any]


def hosts_lines(services: Iterable[Manifest], slices: Iterable[Manifest]) -> list[str]:
    """Lines "address name": cluster IPs, and the ready endpoints of headless Services."""
    headless: set[tuple[str, str]] = set()
    lines: set[str] = set()
    for service in services:
        name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
        address = service["spec"].get("clusterIP")
        if address == "None":
            headless.add((namespace, name))
        elif address:
            lines.add(f"{address} {name}.{namespace}.{_DOMAIN}")
    for piece in slices:
        namespace = piece["metadata"]["namespace"]
        name = piece["metadata"].get("labels", {}).get("kubernetes.io/service-name", "")
        if (namespace, name) in headless:
            lines.update(_endpoint_lines(piece, f"{name}.{namespace}.{_DOMAIN}"))
    return sorted(lines)


def _endpoint_lines(piece: Manifest, name: str) -> Iterable[str]:
    for endpoint in piece.get("endpoints") or []:
        # Absent means unknown, which counts as ready.
        if endpoint.get("conditions", {}).get("ready") is False:
            continue
        for address in endpoint["addresses"]:
            yield f"{address} {name}"
            if hostname := endpoint.get("hostname"):
                yield f"{address} {hostname}.{name}"


def gpu_patch(node: Manifest, num_gpus: int) -> list[Manifest]:
    """The JSON patch of a node's status that makes it advertise `num_gpus`, or [] when it does.

    The kubelet keeps resources it does not know, and forgets them when it registers anew.
    """
    status = node.get("status", {})
    want = str(num_gpus)
    fields = [f for f in ("capacity", "allocatable") if status.get(f, {}).get(GPU_RESOURCE) != want]
    escaped = GPU_RESOURCE.replace("/", "~1")
    return [{"op": "add", "path": f"/status/{f}/{escaped}", "value": want} for f in fields]


class Addons:
    """Keeps the hosts file and the nodes' GPUs as they should be."""

    def __init__(self, api: client.ApiClient, hosts: Path, pids: Path, num_gpus: int) -> None:
        self._core = client.CoreV1Api(api)
        self._discovery = client.DiscoveryV1Api(api)
        self._api = api
        self._hosts = hosts
        self._pids = pids
        self._num_gpus = num_gpus
        self._changed = asyncio.Event()

    async def run(self) -> None:
        kinds = (
            self._core.list_service_for_all_namespaces,
            self._discovery.list_endpoint_slice_for_all_namespaces,
            self._core.list_node,
        )
        async with asyncio.TaskGroup() as tasks:
            for kind in kinds:
                tasks.create_task(self._watch(kind))
            tasks.create_task(self._sync_after_changes())

    async def _watch(self, kind: Callable[..., Any]) -> None:
        while True:
            # Before every watch, so that nothing is lost between two of them.
            self._changed.set()
            try:
                events = watch.Watch().stream(kind, timeout_seconds=_WATCH_S)
                async for _ in events:
                    self._changed.set()
            except Exception as error:  # the API server may be away: say so and ask again
                _say(f"watch {kind.__name__}: {error!r}")
                await asyncio.sleep(_RETRY_S)

    async def _sync_after_changes(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(_SETTLE_S)
            self._changed.clear()
            try:
                await self.sync()
            except Exception as error:  # the same
                _say(f"sync: {error!r}")
                self._changed.set()
                await asyncio.sleep(_RETRY_S)

    async def sync(self) -> None:
        services = await self._items(self._core.list_service_for_all_namespaces)
        slices = await self._items(self._discovery.list_endpoint_slice_for_all_namespaces)
        text = "".join(f"{line}\n" for line in hosts_lines(services, slices))
        if not self._hosts.exists() or self._hosts.read_text() != text:
            self._publish(text)
        for node in await self._items(self._core.list_node):
            if patch := gpu_patch(node, self._num_gpus):
                await self._core.patch_node_status(node["metadata"]["name"], patch)

    async def _items(self, kind: Callable[..., Any]) -> list[Manifest]:
        listed = self._api.sanitize_for_serialization(await kind())
        return list(listed["items"])

    def _publish(self, text: str) -> None:
        temporary = self._hosts.with_suffix(".new")
        temporary.write_text(text)
        temporary.replace(self._hosts)
        if (pid := json.loads(self._pids.read_text()).get("dnsmasq")) is not None:
            os.kill(pid, signal.SIGHUP)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


async def _main(kubeconfig: str, hosts: Path, pids: Path, num_gpus: int) -> None:
    await config.load_kube_config(config_file=kubeconfig)
    async with client.ApiClient() as api:
        await Addons(api, hosts, pids, num_gpus).run()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))

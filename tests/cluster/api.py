"""A few calls to an API server with a kubeconfig's certificate: what `up` waits for, node capacity.

Tests and the project itself use real clients; this one exists so that a second `up` costs no
kubectl.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from tests.cluster.errors import ClusterError


def client(kubeconfig: Path) -> httpx.Client:
    """A client for a kubeconfig written by `kubeconfig.py`."""
    config = json.loads(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    # The ssl module loads certificates from files only.
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(base64.b64decode(user["client-certificate-data"]))
        pair.write(base64.b64decode(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    return httpx.Client(base_url=cluster["server"], verify=context, trust_env=False, timeout=5)


def answers(api: httpx.Client, path: str) -> bool:
    """Whether a GET of `path` succeeds now."""
    try:
        return api.get(path).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(what: str, holds: Callable[[], bool], *, timeout_s: float) -> None:
    """Returns once `holds()`; raises `ClusterError` naming `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not so after {timeout_s:.0f} s")
        time.sleep(0.1)


def node_is_ready(api: httpx.Client, node: str) -> bool:
    try:
        response = api.get(f"/api/v1/nodes/{node}")
    except httpx.TransportError:
        return False
    if response.status_code != 200:
        return False
    conditions: list[dict[str, Any]] = response.json().get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

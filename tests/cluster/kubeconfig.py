"""Writing a kubeconfig from the files of a `Pki`, self-contained: it can be copied elsewhere."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tests.cluster.pki import Pki
from tests.cluster.state import write_atomically


def write_kubeconfig(path: Path, *, name: str, url: str, pki: Pki, identity: str) -> None:
    """Writes `path` (JSON, which is YAML) for `identity` of `pki` at the API server `url`."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [
            {
                "name": name,
                "cluster": {"server": url, "certificate-authority-data": _inline(pki.ca)},
            }
        ],
        "users": [
            {
                "name": identity,
                "user": {
                    "client-certificate-data": _inline(pki.certificate(identity)),
                    "client-key-data": _inline(pki.key(identity)),
                },
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": identity}}],
    }
    write_atomically(path, json.dumps(config, indent=2))


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()

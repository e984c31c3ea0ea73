"""Pods on real nodes that live and die as a test tells them to, in the engine's place.

Real here: scheduler, kubelet, runtime, the pod that the operator makes with its probes, volumes and
grace. In the engine's place runs a shell whose script the service carries in `spec.engine.env`; it
answers the probes as the engine would, or ends as it would.
"""

import json
import shlex
import sys
from typing import Any

from tests.cluster import hostenv
from tests.operator.cluster_operator import service

from octavo_operator import merge

MODEL = {"uri": "file:///usr"}
"""A folder that every node has: what is in it, nobody reads."""
CPU = {"accelerator": {"resourceName": "none"}}
SLEEP = "trap 'exit 0' TERM; sleep 600 & wait"
ANSWER = (
    "mkdir -p /tmp/www && cd /tmp/www && touch readyz livez && "
    f"{{ {sys.executable} -m http.server --protocol HTTP/1.1 8000 & }} && "
    "trap 'exit 0' TERM && wait"
)


def engine_settings(node_prefix: str = "") -> dict[str, Any]:
    """The operator's `engine` settings: the host's programs, and the shell in place of octavo."""
    shell = {"name": "engine", "command": ["/bin/sh", "-c", 'exec /bin/sh -c "$DO"']}
    overlay = merge.overlay(
        hostenv.engine_overlay(node_prefix=node_prefix), {"spec": {"containers": [shell]}}
    )
    return {
        "image": hostenv.ENGINE_IMAGE,
        "imagePullPolicy": "Never",
        "deviceWithAccelerator": "cpu",
        "podOverlay": overlay,
    }


def doing(name: str, script: str = ANSWER, **spec: Any) -> dict[str, Any]:
    """A service whose pods run `script`; on the CPU, to leave at once when told, unless said so."""
    engine = {**spec.pop("engine", {}), "env": [{"name": "DO", "value": script}]}
    rollout = {"drainSeconds": 0, **spec.pop("rollout", {})}
    given = {"model": MODEL, **CPU, **spec}
    return service(name, **given, nodeSelector={}, engine=engine, rollout=rollout)


def last_words(error: str) -> str:
    """A script that ends the way the engine's own process does for this error."""
    code = (
        "from pathlib import Path; from octavo_engine import errors; "
        "from octavo_engine.cli.termination import explain, write_termination_log; "
        f"words = explain({error}); write_termination_log(words, Path('/dev/termination-log')); "
        "raise SystemExit(words.exit_code)"
    )
    return f"exec {sys.executable} -c {shlex.quote(code)}"


def pod_template(**container: Any) -> dict[str, Any]:
    """`spec.podTemplate` that changes the engine's container."""
    return {"podTemplate": {"spec": {"containers": [{"name": "engine", **container}]}}}


def patch(**spec: Any) -> str:
    """For `kubectl patch --type=merge --patch`."""
    return json.dumps({"spec": spec})

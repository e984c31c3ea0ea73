"""What a service in use has to survive: each blow is dealt, and then has settled.

A graceful blow lets streams end; one that kills does not, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.errors import ClusterError
from tests.cluster.local import LocalProvider
from tests.e2e import faults
from tests.e2e.stage import SERVICE, Manifest, NotSo, Stage, ready_now

REPLICAS = 2


@dataclass(frozen=True)
class Blow:
    title: str
    deal: Callable[[Stage], object]
    """Returns once the cluster has carried it out."""


def blows(provider: LocalProvider) -> tuple[Blow, ...]:
    def kill_operator(stage: Stage) -> None:
        faults.kill_operator(provider, stage)
        faults.wait_for_operator(stage)
        _settled(stage)

    return (
        Blow("delete a pod", _delete_pod),
        Blow("scale to 3 and back", _scale),
        Blow("roll out a change", _roll_out),
        Blow("roll out a bad image, revert", _bad_image),
        Blow("roll out a bad argument, revert", _bad_argument),
        Blow("revert in the middle of a rollout", _revert_midway),
        Blow("evict a pod", _evict),
        Blow("drain a node", _drain),
        Blow("kill -9 the operator", kill_operator),
    )


def _delete_pod(stage: Stage) -> None:
    victim = _running(stage)[0]
    stage.kubectl("delete", "pod", victim, "--wait=false")
    _gone(stage, victim)


def _scale(stage: Stage) -> None:
    stage.kubectl("scale", SERVICE, f"--replicas={REPLICAS + 1}")
    _settled(stage, REPLICAS + 1)
    stage.kubectl("scale", SERVICE, f"--replicas={REPLICAS}")
    _settled(stage)


def _roll_out(stage: Stage) -> None:
    old = _running(stage)
    _patch(stage, {"engine": {"maxNumSeqs": 40}})
    _gone(stage, *old)


def _bad_image(stage: Stage) -> None:
    _revert_after(stage, {"image": "localhost/nobody/has:this"}, {"image": None}, "ImagePull")


def _bad_argument(stage: Stage) -> None:
    bad = {"engine": {"extraArgs": ["--no-such-option"]}}
    _revert_after(stage, bad, {"engine": {"extraArgs": None}}, "InvalidConfiguration")


def _revert_midway(stage: Stage) -> None:
    _patch(stage, {"engine": {"maxNumSeqs": 48}})
    stage.wait("a new pod", lambda: len(_running(stage)) == REPLICAS + 1)
    _patch(stage, {"engine": {"maxNumSeqs": 40}})
    _settled(stage)


def _evict(stage: Stage) -> None:
    victim = _running(stage)[0]
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{victim}/eviction"
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": victim, "namespace": stage.namespace},
    }

    def is_taken() -> bool:
        try:
            stage.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(eviction))
        except ClusterError as error:
            if "disruption budget" in str(error):
                return False
            raise
        return True

    # Just after a start the budget may still protect it; who drains tries again, too.
    stage.wait(f"{victim} evicted", is_taken, timeout_s=60)
    _gone(stage, victim)


def _drain(stage: Stage) -> None:
    node = stage.pods()[0]["spec"]["nodeName"]
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=400s")
    try:
        stage.kubectl("drain", node, *flags, timeout_s=420)
        _settled(stage)
    finally:
        stage.kubectl("uncordon", node)


def _revert_after(stage: Stage, bad: Manifest, good: Manifest, reason: str) -> None:
    serving = _running(stage)
    _patch(stage, bad)
    stage.wait(reason, lambda: _reason(stage) == reason)
    _patch(stage, good)
    _settled(stage)
    if _running(stage) != serving:
        raise NotSo(f"{serving} served before {reason}, {_running(stage)} afterwards")


def _patch(stage: Stage, spec: Manifest) -> None:
    patch = json.dumps({"spec": spec})
    stage.kubectl("patch", SERVICE, "--type=merge", f"--patch={patch}")


def _gone(stage: Stage, *names: str) -> None:
    def holds() -> bool:
        return not set(names) & {pod["metadata"]["name"] for pod in stage.pods()}

    stage.wait(f"{', '.join(names)} gone", holds)
    _settled(stage)


def _settled(stage: Stage, replicas: int = REPLICAS) -> None:
    """All wanted replicas of the newest generation are ready, and nothing leaves any more."""

    def holds() -> bool:
        return ready_now(stage.get(SERVICE)) and len(stage.pods()) == replicas

    stage.wait(f"{replicas} replicas and no more", holds)


def _running(stage: Stage) -> list[str]:
    return sorted(
        pod["metadata"]["name"]
        for pod in stage.pods()
        if "deletionTimestamp" not in pod["metadata"]
    )


def _reason(stage: Stage) -> str:
    service = stage.get(SERVICE)
    for condition in service.get("status", {}).get("conditions", []):
        is_now = condition["observedGeneration"] == service["metadata"]["generation"]
        if condition["type"] == "Degraded" and is_now:
            return str(condition["reason"])
    return ""

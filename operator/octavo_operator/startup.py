"""How long each phase of the last start took, for the status. Pure.

Read from a pod that answers: when it was made, placed, when its containers ran, and what its engine
tells of its own stages. The pod keeps these moments in whole seconds.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

from octavo_operator import pod_causes
from octavo_operator.fetch_container import FETCH_CONTAINER_NAME
from octavo_operator.kinds import Manifest
from octavo_operator.pod_causes import Pod
from octavo_operator.pod_template import CONTAINER_NAME

PHASES = {
    "scheduleSeconds": "schedule",
    "imageSeconds": "image",
    "fetchSeconds": "fetch",
    "loadSeconds": "load",
    "totalSeconds": "total",
}
"""Field of the status -> phase, as the metric names it."""
Stages = Mapping[str, int]
"""Stage of an engine's own start -> milliseconds."""


def part(
    old: Mapping[str, Any] | None, pods: Iterable[Pod], stages: Mapping[str, Stages]
) -> Manifest:
    """The status's `startup`, where there is something to tell; `old` is what it was."""
    startup = told(old, pods, stages)
    return {} if startup is None else {"startup": startup}


def told(
    old: Mapping[str, Any] | None, pods: Iterable[Pod], stages: Mapping[str, Stages]
) -> Manifest | None:
    """Of the pod made last among those that answer.

    `stages` are by uid of the pod. What was told of a pod once stays: it may cease to be ready and
    be so again, and then its conditions tell of another moment.
    """
    startup = None if old is None else dict(old)
    newest = max(filter(_answers, pods), key=_made, default=None)
    if newest is None:
        return startup
    if startup is None or startup["time"] < _made(newest):
        seconds = _phases(newest)
        if seconds is None:
            return startup
        startup = {"pod": newest["metadata"]["name"], "time": _made(newest), **seconds}
    if (startup["pod"], startup["time"]) == (newest["metadata"]["name"], _made(newest)):
        startup |= _engines_own(stages.get(newest["metadata"]["uid"]))
    return startup


def _answers(pod: Pod) -> bool:
    return pod_causes.is_ready(pod) and not pod_causes.is_leaving(pod)


def _made(pod: Pod) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))


def _engines_own(stages: Stages | None) -> Manifest:
    return {"engineMilliseconds": dict(stages)} if stages else {}


def _phases(pod: Pod) -> dict[str, int] | None:
    """None where a container ran more than once: how long a start takes cannot be told from it."""
    fetch, engine = _container(pod, FETCH_CONTAINER_NAME), _container(pod, CONTAINER_NAME)
    if any(status.get("restartCount") for status in pod_causes.containers(pod)):
        return None
    placed = pod_causes.condition(pod, "PodScheduled").get("lastTransitionTime")
    begun = engine.get("state", {}).get("running", {}).get("startedAt")
    answered = pod_causes.condition(pod, "Ready").get("lastTransitionTime")
    if not (placed and begun and answered):
        return None
    fetched = fetch.get("state", {}).get("terminated", {})
    marks = [_made(pod), placed]
    marks += [fetched["startedAt"], fetched["finishedAt"]] if fetched else []
    moments = [datetime.fromisoformat(mark) for mark in (*marks, begun, answered)]
    # The clocks of node and API server differ a little.
    spans = [max(0, round((end - start).total_seconds())) for start, end in pairwise(moments)]
    schedule, image, *fetching, load = spans
    seconds = {"totalSeconds": sum(spans), "scheduleSeconds": schedule, "imageSeconds": image}
    if fetching:
        seconds["fetchSeconds"], until_engine = fetching
        seconds["imageSeconds"] += until_engine
    return {**seconds, "loadSeconds": load}


def _container(pod: Pod, name: str) -> Mapping[str, Any]:
    for status in pod_causes.containers(pod):
        if status["name"] == name:
            return status
    return {}

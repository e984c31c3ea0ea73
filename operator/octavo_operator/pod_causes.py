"""Why a pod does not answer: from a pod as the API server shows it to one reason and one sentence.

Pure. A rule is a function from a pod to a cause; the first that answers wins. Sentences hold
nothing that moves while the cause stays (no back-off times, no counters), so that a status does not
flap.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from octavo_operator import start_words
from octavo_operator.reasons import Reason

Pod = Mapping[str, Any]


@dataclass(frozen=True)
class Cause:
    reason: Reason
    pod: str
    sentence: str
    """Begins after the pod's name: "pod x " + sentence."""

    @property
    def message(self) -> str:
        return f"pod {self.pod} {self.sentence}"


_IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_START_REASONS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "StartError",
        "ContainerCannotRun",
        "PreCreateHookError",
        "PreStartHookError",
        "PostStartHookError",
    }
)
_ENGINE_REASONS = {
    "ModelUnreadable": Reason.MODEL_UNREADABLE,
    "InvalidConfiguration": Reason.INVALID_CONFIGURATION,
    "OutOfMemory": Reason.OUT_OF_MEMORY,
    "GPUFault": Reason.GPU_FAULT,
    "EngineStalled": Reason.ENGINE_STALLED,
    "EngineFailed": Reason.ENGINE_FAILED,
    "DownloadFailed": Reason.DOWNLOAD_FAILED,
    "ChecksumMismatch": Reason.CHECKSUM_MISMATCH,
    "SecretMissing": Reason.SECRET_MISSING,
    "DoesNotFit": Reason.DOES_NOT_FIT,
}
"""What the engine writes into its termination message -> our reason."""


def is_ready(pod: Pod) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def has_answered(pod: Pod) -> bool:
    """Whether its container has: the startup probe asks what the readiness probe asks."""
    return any(one.get("started") for one in pod.get("status", {}).get("containerStatuses", []))


def is_leaving(pod: Pod) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def cause(pod: Pod) -> Cause | None:
    """None for a pod that answers, that leaves, or that is on its way without trouble."""
    if is_ready(pod) or is_leaving(pod):
        return None
    for rule in _RULES:
        found = rule(pod)
        if found is not None:
            reason, sentence = found
            return Cause(reason, pod["metadata"]["name"], sentence)
    return None


def waiting_for(pod: Pod) -> str:
    """What a pod without trouble is waiting for; a few words."""
    if condition(pod, "PodScheduled").get("status") != "True":
        return "waits for a node"
    if any(status.get("started") for status in pod.get("status", {}).get("containerStatuses", [])):
        return "begins to answer"
    fetching = pod.get("status", {}).get("initContainerStatuses", [])
    if any("running" in status.get("state", {}) for status in fetching):
        return "fetches its model"
    if any("running" in status.get("state", {}) for status in containers(pod)):
        return "loads its model"
    return "starts its container"


_Finding = tuple[Reason, str]


def _failed_pod(pod: Pod) -> _Finding | None:
    status = pod.get("status", {})
    if status.get("phase") != "Failed":
        return None
    why = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
    return Reason.POD_FAILED, f"has failed: {why or 'the node gave no reason'}"


def _unschedulable(pod: Pod) -> _Finding | None:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable":
        return None
    return Reason.UNSCHEDULABLE, f"fits on no node: {scheduled.get('message', '')}"


def _image(pod: Pod) -> _Finding | None:
    for status, waiting in _waiting(pod):
        if waiting.get("reason") in _IMAGE_REASONS:
            detail = waiting["reason"].replace("ImagePullBackOff", "ErrImagePull")
            return Reason.IMAGE_PULL, f"cannot get image {status['image']}: {detail}"
    return None


def _cannot_start(pod: Pod) -> _Finding | None:
    for status, waiting in _waiting(pod):
        if waiting.get("reason") in _START_REASONS:
            detail = start_words.settled(pod, waiting.get("message", waiting["reason"]))
            return (
                Reason.CONTAINER_CANNOT_START,
                f"cannot start container {status['name']}: {detail}",
            )
    return None


def _ended(pod: Pod) -> _Finding | None:
    """The last end of a container counts until the pod answers again: a restart is no recovery."""
    for status in containers(pod):
        ended = _last_end(status)
        if ended is None:
            continue
        if ended.get("reason") == "OOMKilled":
            limit = "the container's memory limit or the node's memory was exceeded"
            return Reason.OOM_KILLED, f"was killed for memory: {limit}"
        if ended.get("reason") in _START_REASONS:
            detail = ended.get("message", ended["reason"])
            return (
                Reason.CONTAINER_CANNOT_START,
                f"cannot start container {status['name']}: {detail}",
            )
        return _engine_words(ended.get("message", "")) or _without_words(ended)
    return None


def _not_answering(pod: Pod) -> _Finding | None:
    """Runs still, and has ceased to be ready since its start."""
    unready_since = condition(pod, "Ready").get("lastTransitionTime", "")
    for status in containers(pod):
        running = status.get("state", {}).get("running")
        if running is not None and unready_since > running.get("startedAt", ""):
            return Reason.NOT_ANSWERING, "runs but does not answer its readiness probe"
    return None


_RULES: tuple[Callable[[Pod], _Finding | None], ...] = (
    _failed_pod,
    _unschedulable,
    _image,
    _cannot_start,
    _ended,
    _not_answering,
)


def _engine_words(text: str) -> _Finding | None:
    """The engine's termination message, {"reason", "message"}; None when it is something else."""
    try:
        words = json.loads(text)
    except ValueError:
        return None
    if not isinstance(words, dict) or words.get("reason") not in _ENGINE_REASONS:
        return None
    return _ENGINE_REASONS[words["reason"]], f"ended: {words.get('message', words['reason'])}"


def _without_words(ended: Mapping[str, Any]) -> _Finding:
    lines = ended.get("message", "").strip().splitlines()
    last_line = f"; its last line was: {lines[-1][:300]}" if lines else ""
    return Reason.CRASH_LOOP, f"ended with exit code {ended.get('exitCode')}{last_line}"


def _last_end(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if status.get("state", {}).get("terminated", {}).get("exitCode") == 0 and status.get("ready"):
        return None  # an init container that has done its work
    for state in ("state", "lastState"):
        ended = status.get(state, {}).get("terminated")
        if ended is not None:
            found: Mapping[str, Any] = ended
            return found
    return None


def containers(pod: Pod) -> list[Mapping[str, Any]]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def _waiting(pod: Pod) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for status in containers(pod):
        waiting = status.get("state", {}).get("waiting")
        if waiting is not None:
            yield status, waiting


def condition(pod: Pod, condition_type: str) -> Mapping[str, Any]:
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == condition_type:
            found: Mapping[str, Any] = condition
            return found
    return {}

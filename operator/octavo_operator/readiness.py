"""From facts to the six conditions. Pure.

`_UNREADY` is the specification of Ready: the first check that answers says why it is False.
"""

from collections.abc import Callable

from octavo_operator.conditions import Condition
from octavo_operator.facts import Facts
from octavo_operator.reasons import Reason

Finding = tuple[Reason, str]
Check = Callable[[Facts], Finding | None]


def conditions(facts: Facts) -> tuple[Condition, ...]:
    return (
        _accepted(facts),
        _model_ready(facts),
        _available(facts),
        _progressing(facts),
        _degraded(facts),
        _ready(facts),
    )


def _is_rejected(facts: Facts) -> Finding | None:
    problem = facts.not_accepted
    return None if problem is None else (problem.reason, problem.message)


def _is_not_applied(facts: Facts) -> Finding | None:
    problem = facts.not_applied
    return None if problem is None else (problem.reason, problem.message)


def _waits_for_predecessor(facts: Facts) -> Finding | None:
    if not facts.predecessors:
        return None
    return (
        Reason.PREDECESSOR_TERMINATING,
        "objects of a deleted service with the same name are still being removed: "
        + ", ".join(facts.predecessors),
    )


def _is_scaled_to_zero(facts: Facts) -> Finding | None:
    if facts.wanted_replicas > 0:
        return None
    return Reason.SCALED_TO_ZERO, "spec.replicas is 0, so nothing serves"


def _has_pod_in_trouble(facts: Facts) -> Finding | None:
    if not facts.causes:
        return None
    first, *others = facts.causes
    more = f" (and {len(others)} more pods in trouble)" if others else ""
    return first.reason, first.message + more


def _is_blocked(facts: Facts) -> Finding | None:
    """A pod that says more than that it finds no node comes first."""
    if facts.blocked is None or any(c.reason is not Reason.UNSCHEDULABLE for c in facts.causes):
        return None
    return Reason.ROLLOUT_BLOCKED_NO_SPARE_GPU, facts.blocked


def _overstays(facts: Facts) -> Finding | None:
    if not facts.overstaying:
        return None
    first, *others = facts.overstaying
    more = f" (and {len(others)} more)" if others else ""
    return first.reason, first.message + more


def _cannot_create_pods(facts: Facts) -> Finding | None:
    failure = facts.rollout.creation_failure
    if failure is None:
        return None
    is_quota = "exceeded quota" in failure
    reason = Reason.QUOTA_EXCEEDED if is_quota else Reason.POD_CREATION_FAILED
    return reason, f"the API server refuses pods: {failure}"


def _is_out_of_time(facts: Facts) -> Finding | None:
    message = facts.rollout.deadline_message
    if message is None:
        return None
    return Reason.PROGRESS_DEADLINE_EXCEEDED, f"{_count(facts)}, and none came in time: {message}"


def _is_moving(facts: Facts) -> Finding | None:
    rollout = facts.rollout
    if not rollout.is_observed:
        return Reason.ROLLING_OUT, f"the {rollout.kind} has not yet taken up this generation"
    if rollout.updated_replicas < rollout.replicas:
        return Reason.ROLLING_OUT, (
            f"{rollout.updated_replicas} of {facts.wanted_replicas} replicas run this generation"
            f"{_waiting(facts)}"
        )
    if rollout.replicas > facts.wanted_replicas:
        return Reason.DRAINING, (
            f"{rollout.replicas} replicas run, {facts.wanted_replicas} are wanted"
        )
    if rollout.ready_replicas < facts.wanted_replicas and not rollout.was_complete:
        return Reason.STARTING, f"{_count(facts)}{_waiting(facts)}"
    return None


def _is_draining(facts: Facts) -> Finding | None:
    """What is wanted answers already; what is not wanted any more ends its streams."""
    if not facts.leaving:
        return None
    return Reason.DRAINING, f"pods that end their streams and leave: {', '.join(facts.leaving)}"


def _has_too_few(facts: Facts) -> Finding | None:
    if facts.rollout.ready_replicas >= facts.wanted_replicas:
        return None
    return Reason.MINIMUM_REPLICAS_UNAVAILABLE, f"{_count(facts)}{_waiting(facts)}"


_TROUBLE: tuple[Check, ...] = (
    _is_not_applied,
    _is_blocked,
    _has_pod_in_trouble,
    _cannot_create_pods,
    _is_out_of_time,
    _overstays,
)
_UNREADY: tuple[Check, ...] = (
    _is_rejected,
    _is_not_applied,
    _waits_for_predecessor,
    _is_blocked,
    _has_pod_in_trouble,
    _cannot_create_pods,
    _is_out_of_time,
    _is_moving,
    _is_scaled_to_zero,
    _has_too_few,
)

_MODEL_REASONS = frozenset(
    {
        Reason.MODEL_NOT_FOUND,
        Reason.MODEL_UNREADABLE,
        Reason.DOWNLOAD_FAILED,
        Reason.CHECKSUM_MISMATCH,
        Reason.DOES_NOT_FIT,
        Reason.SECRET_MISSING,
        Reason.VOLUME_MOUNT,
    }
)


def _accepted(facts: Facts) -> Condition:
    rejection = _is_rejected(facts)
    if rejection is not None:
        return Condition("Accepted", False, *rejection)
    return Condition("Accepted", True, Reason.ACCEPTED, "the spec can be carried out")


def _model_ready(facts: Facts) -> Condition:
    """A pod that serves is proof; else the first cause that has to do with the model's files."""
    if facts.is_model_open:
        return Condition("ModelReady", True, Reason.MODEL_READY, "the model's files are served")
    for cause in facts.causes:
        if cause.reason in _MODEL_REASONS:
            return Condition("ModelReady", False, cause.reason, cause.message)
    stopped = _first((_is_rejected, _is_scaled_to_zero), facts)
    reason, message = stopped or (
        Reason.MODEL_PENDING,
        f"no pod has read the model's files yet{_waiting(facts)}",
    )
    return Condition("ModelReady", False, reason, message)


def _available(facts: Facts) -> Condition:
    if facts.rollout.ready_replicas > 0:
        return Condition("Available", True, Reason.REPLICAS_AVAILABLE, _count(facts))
    reason, message = _first(_UNREADY, facts) or (
        Reason.MINIMUM_REPLICAS_UNAVAILABLE,
        _count(facts),
    )
    return Condition("Available", False, reason, message)


def _progressing(facts: Facts) -> Condition:
    stopped = _first((_is_rejected, _is_not_applied, _is_out_of_time), facts)
    if stopped is not None:
        return Condition("Progressing", False, *stopped)
    moving = _first((_waits_for_predecessor, _is_blocked, _is_moving, _is_draining), facts)
    if moving is not None:
        return Condition("Progressing", True, *moving)
    return Condition(
        "Progressing", False, Reason.ROLLOUT_COMPLETE, "all replicas run this generation"
    )


def _degraded(facts: Facts) -> Condition:
    trouble = _first(_TROUBLE, facts)
    if trouble is not None:
        return Condition("Degraded", True, *trouble)
    return Condition("Degraded", False, Reason.AS_EXPECTED, "nothing is wrong")


def _ready(facts: Facts) -> Condition:
    finding = _first(_UNREADY, facts)
    if finding is not None:
        return Condition("Ready", False, *finding)
    return Condition("Ready", True, Reason.ALL_REPLICAS_READY, _count(facts))


def _first(checks: tuple[Check, ...], facts: Facts) -> Finding | None:
    for check in checks:
        finding = check(facts)
        if finding is not None:
            return finding
    return None


def _count(facts: Facts) -> str:
    return f"{facts.rollout.ready_replicas} of {facts.wanted_replicas} replicas answer"


def _waiting(facts: Facts) -> str:
    return f"; {'; '.join(facts.waiting[:3])}" if facts.waiting else ""

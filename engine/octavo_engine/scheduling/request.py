"""A request inside the core and its sequences, with the pure rules for when a sequence ends.

Plain state: the scheduler moves it. Knows no pages beyond their ids, no runner and no torch.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from octavo_engine.messages import (
    EngineRequest,
    FinishReason,
    PositionLogprobs,
)
from octavo_engine.sampling_params import SamplingParams

Outcome = Literal["finished", "aborted", "failed"]


class SequenceState(Enum):
    BLOCKED = "blocked"
    """Waits for its request's first sequence, whose prompt pages it will share."""
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Sequence:
    """One of a request's `n` continuations."""

    request: "Request"
    index: int
    key: tuple[float, int]
    """Order among all sequences, smaller first; fixed at arrival, ageing included."""
    token_ids: list[int]
    """All tokens known so far; grows at commit."""
    num_prompt_tokens: int
    max_len: int
    """Prompt + output tokens at which the sequence ends by length."""
    seed: int
    root: bytes
    """Where its hash chain begins."""
    num_rotated: int
    """Known tokens when what it has computed was begun: see `EngineInfo.restart_len`."""
    state: SequenceState = SequenceState.WAITING
    row: int | None = None
    """Its row in the runner's table while RUNNING."""
    block_tables: list[list[int]] = field(default_factory=list)
    """A table for each KV group while RUNNING, else empty."""
    host_tables: list[list[int]] = field(default_factory=list)
    """The same in host memory while swapped out."""
    capacity_tokens: int = 0
    """Positions that every group's table covers."""
    chain: list[bytes] = field(default_factory=list)
    num_registered: int = 0
    """Leading pages already offered to the prefix cache."""
    num_computed: int = 0
    """Positions whose keys and values are written by the steps launched so far."""
    num_inflight: int = 0
    """Tokens sampled by steps in flight: known to the runner, not yet to us."""
    is_prefilling: bool = True
    num_cached_tokens: int = 0
    """Prompt tokens served from the prefix cache at the first admission."""
    was_admitted: bool = False
    admitted_s: float = 0.0
    """When its first step was scheduled."""
    prompt_step: int = 0
    """The step that computes the last token of its latest prefill."""
    resume_after: int = 0
    """The last step launched when it was preempted; it does not come back before that has ended."""
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    """Collected until the first delta takes them; None when not asked for or already sent."""

    @property
    def params(self) -> SamplingParams:
        return self.request.spec.params

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.prompt_logprobs is not None


@dataclass(slots=True, eq=False)
class Request:
    """A request from its submission until its last sequence has ended."""

    spec: EngineRequest
    sequences: list[Sequence] = field(default_factory=list)
    num_live: int = 0
    worst: Outcome = "finished"
    outcome: Outcome | None = None
    """Set once, when the last sequence ends."""

    def note_end(self, reason: FinishReason) -> Outcome | None:
        """Counts one ended sequence; returns the request's outcome when it was the last."""
        assert self.outcome is None, f"request {self.spec.request_id} ended twice"
        if reason == "error":
            self.worst = "failed"
        elif reason == "abort" and self.worst != "failed":
            self.worst = "aborted"
        self.num_live -= 1
        if self.num_live == 0:
            self.outcome = self.worst
        return self.outcome


@dataclass(slots=True)
class OutcomeLedger:
    """Every request ends in exactly one way: submitted = live + finished + aborted + failed."""

    submitted: int = 0
    ended: dict[Outcome, int] = field(
        default_factory=lambda: {"finished": 0, "aborted": 0, "failed": 0}
    )

    def check(self, num_live: int) -> None:
        total = num_live + sum(self.ended.values())
        assert self.submitted == total, (
            f"{self.submitted} requests came, {num_live} live and {self.ended} ended"
        )


def end_after_token(
    params: SamplingParams, token_id: int, num_generated: int, is_full: bool
) -> tuple[FinishReason, int | None] | None:
    """Whether the token just appended ends its sequence, and why.

    `num_generated` counts it; `is_full` says that no further token is allowed.
    """
    if num_generated > params.min_tokens:
        if token_id in params.stop_token_ids:
            return "stop", token_id
        if not params.ignore_eos and token_id in params.eos_token_ids:
            return "stop", None
    return ("length", None) if is_full else None

"""What the result of a step means: tokens appended, sequences ended, pages given back.

Tokens of sequences that have ended meanwhile are dropped; a row whose handling failed takes its own
request with it and no other.
"""

import structlog

from octavo_engine.batch import PromptLogprobs, SampledToken, StepResult
from octavo_engine.messages import (
    REQUEST_FAILED,
    FinishReason,
    PositionLogprobs,
    RequestDelta,
)
from octavo_engine.scheduling.request import Sequence, SequenceState, end_after_token
from octavo_engine.scheduling.state import InFlightStep, SchedulerState

log = structlog.get_logger(__name__)


def commit_step(state: SchedulerState, result: StepResult) -> InFlightStep:
    """Applies a result to the oldest step in flight and returns that step.

    Raises RuntimeError when the runner broke its contract: a step out of order, a token missing.
    """
    step = state.inflight.popleft()
    if step.step_id != result.step_id:
        raise RuntimeError(f"the runner answered step {result.step_id}, expected {step.step_id}")
    if len(result.sampled) + len(result.failed_rows) < step.num_samples:
        raise RuntimeError(
            f"step {step.step_id} should sample {step.num_samples} tokens, "
            f"the runner returned {len(result.sampled)} and failed {len(result.failed_rows)} rows"
        )
    for row, message in result.failed_rows.items():
        _fail(state, step.rows[row], message)
    for part in result.prompt_logprobs:
        _collect_prompt_logprobs(step.rows[part.row], part)
    for token in result.sampled:
        seq = step.rows[token.row]
        seq.num_inflight -= 1
        if seq.state is SequenceState.ENDED:
            continue
        try:
            _append(state, seq, token)
        except Exception:
            log.exception("a request failed", request_id=seq.request.spec.request_id)
            _fail(state, seq, REQUEST_FAILED)
    state.frees.step_ended(step.step_id)
    if state.host_frees is not None:
        state.host_frees.step_ended(step.step_id)
    return step


def _fail(state: SchedulerState, seq: Sequence, message: str) -> None:
    if seq.state is not SequenceState.ENDED:
        state.end_request(seq.request, "error", error=message)


def _append(state: SchedulerState, seq: Sequence, token: SampledToken) -> None:
    token_ids, params = seq.token_ids, seq.request.spec.params
    is_first = len(token_ids) == seq.num_prompt_tokens
    is_wanted = params.max_tokens != 0  # a prompt is scored by a step that samples all the same
    reason, stop_reason = _take_token(state, seq, token) if is_wanted else ("length", None)
    delta = RequestDelta(
        request_id=seq.request.spec.request_id,
        index=seq.index,
        token_ids=[token.token_id] if is_wanted else [],
        logprobs=[_known(token)] if is_wanted and params.logprobs is not None else None,
        prompt_logprobs=_take_prompt_logprobs(seq),
        num_cached_tokens=seq.num_cached_tokens,
        finish_reason=reason,
        stop_reason=stop_reason,
        queue_s=seq.admitted_s - seq.request.spec.arrival_time_s if is_first else None,
    )
    if reason is None:
        state.outbox.append(delta)
    else:
        state.end(seq, reason, delta=delta)


def _take_token(
    state: SchedulerState, seq: Sequence, token: SampledToken
) -> tuple[FinishReason | None, int | None]:
    """Whether it ends its sequence, and why."""
    seq.token_ids.append(token.token_id)
    num_known = len(seq.token_ids)
    state.counters.generation_tokens += 1
    if num_known >= (seq.num_registered + 1) * state.tables.block_size and seq.block_tables:
        state.tables.register(seq)
    end = end_after_token(
        seq.params, token.token_id, num_known - seq.num_prompt_tokens, num_known >= seq.max_len
    )
    return end or (None, None)


def _known(token: SampledToken) -> PositionLogprobs:
    if token.logprobs is None:
        raise ValueError(f"the runner returned no logprobs for token {token.token_id}")
    return token.logprobs


def _collect_prompt_logprobs(seq: Sequence, part: PromptLogprobs) -> None:
    """Keeps each position once: a prompt computed again after a preemption repeats them."""
    collected = seq.prompt_logprobs
    if collected is None:
        return
    known = len(collected) - part.first_position
    if known < 0:
        raise RuntimeError(
            f"prompt logprobs of row {part.row} begin at position {part.first_position}, "
            f"{len(collected)} positions are known"
        )
    collected += part.positions[known:]


def _take_prompt_logprobs(seq: Sequence) -> list[PositionLogprobs | None] | None:
    collected = seq.prompt_logprobs
    if collected is None:
        return None
    if len(collected) != seq.num_prompt_tokens:
        raise ValueError(
            f"{len(collected)} prompt logprobs for {seq.num_prompt_tokens} prompt tokens"
        )
    seq.prompt_logprobs = None
    return collected

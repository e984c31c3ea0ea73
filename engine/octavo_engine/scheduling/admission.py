"""The door: what a request must fulfil before it is queued, and its first state. Pure.

Whatever passes here fits the pool alone, so that the head of the queue can always be served.
"""

from collections.abc import Callable
from dataclasses import dataclass

from octavo_engine.errors import PromptTooLong, RequestError
from octavo_engine.messages import EngineRequest
from octavo_engine.sampling_params import resolve_seed
from octavo_engine.scheduling.prefix import root_digest
from octavo_engine.scheduling.request import Request, Sequence, SequenceState
from octavo_engine.scheduling.waiting_queue import order_key

MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DoorLimits:
    vocab_size: int
    max_model_len: int
    """Largest prompt + output of one sequence: the model's context and the pages both allow it."""
    original_context_len: int | None = None
    """See `EngineInfo`."""
    restart_len: int | None = None
    """See `EngineInfo`."""

    def rotated_len(self, num_tokens: int) -> int | None:
        """The length that pages computed from so many known tokens depend on; None: on none."""
        limit = self.original_context_len
        if limit is None or num_tokens <= limit:
            return None
        # Beyond this one all lengths rotate alike.
        return num_tokens if self.restart_len is None else self.restart_len + 1

    def outgrows(self, num_before: int, num_now: int) -> bool:
        """Whether a sequence that grows so has to be computed anew."""
        return self.restart_len is not None and num_before <= self.restart_len < num_now

    def root(self, spec: EngineRequest, num_tokens: int) -> bytes:
        """Where the hash chain of a sequence begins that is computed from so many known tokens."""
        return root_digest(spec.cache_salt, rotated_len=self.rotated_len(num_tokens))


def verify_request(spec: EngineRequest, door: DoorLimits) -> None:
    """Raises RequestError that names parameter and value."""
    prompt, params = spec.prompt_token_ids, spec.params
    if not prompt:
        raise RequestError("the prompt is empty", "prompt")
    if min(prompt) < 0 or max(prompt) >= door.vocab_size:
        bad = next(t for t in prompt if not 0 <= t < door.vocab_size)
        raise RequestError(
            f"prompt token id {bad} is outside the vocabulary [0, {door.vocab_size})", "prompt"
        )
    needs_output = params.max_tokens != 0
    if len(prompt) + needs_output > door.max_model_len:
        more = " and at least one output token" if needs_output else ""
        raise PromptTooLong(
            f"the prompt has {len(prompt)} tokens, but this model's context of "
            f"{door.max_model_len} tokens must hold the prompt{more}",
            "prompt",
        )
    if abs(spec.priority) > MAX_PRIORITY:
        raise RequestError(
            f"priority must be from {-MAX_PRIORITY} to {MAX_PRIORITY}, got {spec.priority}",
            "priority",
        )
    params.verify(door.vocab_size)
    if params.max_tokens is not None and len(prompt) + params.max_tokens > door.max_model_len:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens and max_tokens is {params.max_tokens}: together "
            f"{len(prompt) + params.max_tokens}, beyond this model's context of "
            f"{door.max_model_len} tokens",
            "max_tokens",
        )
    room = door.max_model_len - len(prompt)
    if params.min_tokens > room:
        raise RequestError(
            f"min_tokens is {params.min_tokens}, but only {room} tokens fit after the prompt",
            "min_tokens",
        )


def make_request(
    spec: EngineRequest,
    door: DoorLimits,
    ageing_s: float,
    first_serial: int,
    draw_seed: Callable[[], int],
) -> Request:
    """The request with its `n` sequences; all but the first wait for the first one's prompt."""
    params, num_prompt = spec.params, len(spec.prompt_token_ids)
    room = door.max_model_len - num_prompt
    max_len = num_prompt + (room if params.max_tokens is None else min(params.max_tokens, room))
    seed = draw_seed() if params.seed is None else params.seed
    root = door.root(spec, num_prompt)
    request = Request(spec, num_live=params.n)
    for index in range(params.n):
        is_first = index == 0
        wants_prompt_logprobs = is_first and params.prompt_logprobs is not None
        request.sequences.append(
            Sequence(
                request=request,
                index=index,
                key=order_key(spec.arrival_time_s, spec.priority, ageing_s, first_serial + index),
                token_ids=list(spec.prompt_token_ids),
                num_prompt_tokens=num_prompt,
                max_len=max_len,
                seed=resolve_seed(seed, index),
                root=root,
                num_rotated=num_prompt,
                state=SequenceState.WAITING if is_first else SequenceState.BLOCKED,
                prompt_logprobs=[None] if wants_prompt_logprobs else None,
            )
        )
    return request

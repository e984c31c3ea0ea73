"""What crosses between the server and the engine's core: plain data, nothing else.

The server (HTTP, templates, tokenizer) and the core (scheduler, runner) may live in two processes;
everything here is a msgspec struct, so that it can travel as msgpack. No torch.
"""

from typing import Literal, Protocol

import msgspec

from octavo_engine.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]

# Sentences for clients; what really happened is in the log, where it belongs.
ENGINE_STOPPED = "the engine has stopped"
REQUEST_FAILED = "internal error in the handling of this request"


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the core sees it; made by the server, never changed."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    """Resolved: the model's `generation_config` is filled in where the client said nothing."""
    priority: int = 0
    """Lower is more urgent."""
    cache_salt: str | None = None
    """Requests of different salts never share prefix pages."""
    arrival_time_s: float = 0.0
    """`time.monotonic()` when the request reached the server."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    token_id: int
    logprob: float
    rank: int
    """1 is the most likely token of the vocabulary."""


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The chosen token's logprob and the k most likely alternatives, most likely first."""

    chosen: TokenLogprob
    top: list[TokenLogprob]


class RequestDelta(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one step adds to one sequence; exactly one delta of a sequence finishes it."""

    request_id: str
    index: int = 0
    """Which of the request's `n` sequences."""
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None = None
    """One for each of `token_ids` when the request asked for them."""
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    """One for each prompt token (the first is None); sent once, with the first delta of index 0."""
    num_cached_tokens: int = 0
    """Prompt tokens served from the prefix cache."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended the sequence; None for end-of-sequence tokens."""
    error: str | None = None
    """Set with finish_reason `error`: a sentence for the client."""
    queue_s: float | None = None
    """With a sequence's first token: the time from the request's arrival to its first step."""


STEP_TOKENS_BOUNDS = tuple(2**power for power in range(15))
"""Upper bounds of the histogram of a step's tokens."""


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over all steps so far."""

    schedule_s: float = 0.0
    launch_s: float = 0.0
    wait_s: float = 0.0
    """For the device."""
    commit_s: float = 0.0
    device_s: float = 0.0
    """As the runner measured it."""
    host_gap_s: float = 0.0
    """The device had work coming and waited for the host."""
    num_rows: int = 0
    num_padded_rows: int = 0
    """Rows that were computed beside them only to fill a captured graph's size."""
    num_graph_steps: int = 0
    num_tokens: int = 0
    tokens_histogram: tuple[int, ...] = (0,) * (len(STEP_TOKENS_BOUNDS) + 1)
    """Steps by their number of tokens, by `STEP_TOKENS_BOUNDS`; the last has no bound."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the core, cheap to take; counters only ever grow."""

    num_running: int
    num_waiting: int
    kv_blocks_total: int
    kv_blocks_used: int
    """Pages referenced by a request; cached pages without a reference are not counted."""
    kv_blocks_cached: int
    prompt_tokens_total: int
    generation_tokens_total: int
    prefix_queries_tokens_total: int
    prefix_hits_tokens_total: int
    preemptions_total: int
    finished_total: dict[str, int]
    """Sequences ended, by finish reason."""
    steps_total: int
    last_step_age_s: float
    """Seconds since the loop last made progress (a step begun or ended, or an idle tick)."""
    has_work: bool
    steps: StepStats = StepStats()
    silence_s: float = 0.0
    """Seconds since the core's process was last heard of; it speaks several times a second even
    when idle. 0 for a core in the server's own process."""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that hold from readiness on."""

    vocab_size: int
    max_model_len: int
    """Largest prompt + output of one sequence, in tokens."""
    block_size: int
    num_blocks: int
    max_num_seqs: int
    dtype: str
    device: str
    original_context_len: int | None = None
    """Prompts of more tokens than this have their positions scaled by their own length: their pages
    serve prompts of the same length only. None: pages depend on tokens and positions alone."""
    restart_len: int | None = None
    """A sequence that outgrows so many tokens is computed anew, since every rotation in it changes
    (longrope). None: a key once computed stays."""


class RequestStream(Protocol):
    """The deltas of one request, as they come; ends after every sequence has finished."""

    def __aiter__(self) -> "RequestStream": ...

    async def __anext__(self) -> list[RequestDelta]: ...


class EngineClient(Protocol):
    """The server's only door to the core. Implementations: `in_process`, `process_client`."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def death(self) -> str | None:
        """Why the core has stopped, a sentence; None while it lives."""
        ...

    def submit(self, request: EngineRequest) -> RequestStream:
        """Queues a request. Raises `RequestError` (a 400 for the client) before anything is queued:
        ids out of range, empty prompt, prompt beyond the context, a request that can never fit.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Ends all sequences of a request; idempotent, unknown ids are ignored."""
        ...

    def finish(self, request_id: str, index: int, stop_reason: str) -> None:
        """Ends one sequence as `stop`: the server saw a stop string in its text. Idempotent."""
        ...

    def stats(self) -> EngineStats: ...

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """Instead of `close` when the process ends by a failure: leaves nothing running, waits for
        nothing."""
        ...

"""Runs many prompts through an engine from a plain thread and gathers their outputs.

Knows no model loading and no files; `llm.py` is its user.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import structlog

from octavo_engine.core.in_process import InProcessEngine
from octavo_engine.core.streams import QueueMailbox
from octavo_engine.errors import EngineDead, QueueFull, RequestError
from octavo_engine.messages import EngineRequest, PositionLogprobs, RequestDelta
from octavo_engine.offline.outputs import CompletionOutput, Logprob, RequestOutput
from octavo_engine.text.sequence_text import SequenceText
from octavo_engine.text.token_bytes import token_text
from octavo_engine.text.tokenizer import Tokenizer

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    prompt: str | None
    request: EngineRequest


def run_jobs(
    engine: InProcessEngine,
    tokenizer: Tokenizer,
    jobs: Iterable[Job],
    on_tokens: Callable[[int], None] = lambda num_tokens: None,
) -> Iterator[RequestOutput]:
    """Yields each output when it is complete. Jobs are taken from the iterable as room comes up.

    What goes wrong in one job ends that one: its outputs say why. Raises EngineDead when the engine
    stops; whatever ends it early, the jobs under way are aborted.
    """
    # Enough waiting that a finished row is refilled at once, few enough for a long list of jobs.
    max_live = min(2 * engine.info.max_num_seqs, engine.max_queued_requests)
    mailbox = QueueMailbox()
    live: dict[str, _LiveJob] = {}
    pending: Iterator[Job] = iter(jobs)
    try:
        while True:
            while len(live) < max_live and (job := next(pending, None)) is not None:
                running = _LiveJob(job, tokenizer)
                try:
                    engine.submit_to(job.request, mailbox)
                except QueueFull:  # of prompt tokens: only ever with others under way
                    pending = chain([job], pending)
                    break
                except RequestError as error:
                    running.fail(str(error))
                    yield running.output
                else:
                    live[job.request.request_id] = running
            if not live:
                return
            for delta in mailbox.get():
                on_tokens(len(delta.token_ids))
                found = live.get(delta.request_id)
                if found is None:
                    continue  # its sequences had all ended by their text
                found.take(delta, engine)
                if found.output.finished:
                    yield live.pop(delta.request_id).output
            if engine.death is not None:
                raise EngineDead(engine.death)
    finally:
        for request_id in live:
            engine.abort(request_id)


class _LiveJob:
    """A job under way: its sequences as text and as an output that fills."""

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        request = job.request
        self._request_id = request.request_id
        self._tokenizer = tokenizer
        self._texts = [
            SequenceText(tokenizer, request.params, request.prompt_token_ids)
            for _ in range(request.params.n)
        ]
        wants_logprobs = request.params.logprobs is not None
        self.output = RequestOutput(
            request_id=request.request_id,
            prompt=job.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[
                CompletionOutput(
                    index=i,
                    logprobs=[] if wants_logprobs else None,
                    cumulative_logprob=0.0 if wants_logprobs else None,
                )
                for i in range(request.params.n)
            ],
        )

    def fail(self, error: str) -> None:
        """Ends what has not ended."""
        for completion in self.output.outputs:
            if completion.finish_reason is None:
                completion.finish_reason, completion.error = "error", error

    def take(self, delta: RequestDelta, engine: InProcessEngine) -> None:
        try:
            self._take(delta, engine)
        except Exception as error:  # of this job's tokens and text: the others have their own
            log.exception("a request failed", request_id=self._request_id)
            engine.abort(self._request_id)
            self.fail(f"{type(error).__name__}: {error}")

    def _take(self, delta: RequestDelta, engine: InProcessEngine) -> None:
        text = self._texts[delta.index]
        if text.finished:
            return
        if delta.prompt_logprobs is not None:
            self.output.prompt_logprobs = [
                None if position is None else self._by_id(position)
                for position in delta.prompt_logprobs
            ]
        self.output.num_cached_tokens = max(self.output.num_cached_tokens, delta.num_cached_tokens)
        piece = text.push(delta)
        completion = self.output.outputs[delta.index]
        completion.text += piece.text
        for token in piece.tokens:
            completion.token_ids.append(token.token_id)
            if completion.logprobs is not None and token.logprobs is not None:
                completion.logprobs.append(self._by_id(token.logprobs))
                total = (completion.cumulative_logprob or 0.0) + token.logprobs.chosen.logprob
                completion.cumulative_logprob = total
        completion.finish_reason = piece.finish_reason
        completion.stop_reason = piece.stop_reason
        completion.error = piece.error
        if piece.finish_reason == "stop" and isinstance(piece.stop_reason, str):
            engine.finish(self._request_id, delta.index, piece.stop_reason)

    def _by_id(self, position: PositionLogprobs) -> dict[int, Logprob]:
        bytes_of = self._tokenizer.token_bytes
        return {
            token.token_id: Logprob(token.logprob, token.rank, token_text(bytes_of(token.token_id)))
            for token in (position.chosen, *position.top)
        }

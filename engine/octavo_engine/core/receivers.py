"""Who gets the deltas of which request, and how much waits: the client's side of any engine.

Submits come from any thread; deltas are posted by one (the core's, or the one that listens to the
core's process). Knows neither scheduler nor runner.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from octavo_engine.core.streams import DeltaStream, LoopMailbox, Mailbox
from octavo_engine.errors import EngineDead, QueueFull, RequestError
from octavo_engine.messages import EngineRequest, FinishReason, RequestDelta

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    max_requests: int
    """Requests without a first token."""
    max_tokens: int
    """Tokens of their prompts together. One request alone is let in whatever its length."""


@dataclass(slots=True)
class _Claim:
    mailbox: Mailbox
    live: set[int]
    """Indices of the sequences that have not ended."""
    num_prompt_tokens: int
    waits: bool = True
    """Nothing has come yet."""


class Receivers:
    """`abort` is called with the id of a request that nobody can receive any more."""

    def __init__(self, limits: QueueLimits, abort: Callable[[str], None]) -> None:
        self._limits = limits
        self._abort = abort
        self._lock = threading.Lock()
        """Guards all below: submits come from any thread."""
        self._claims: dict[str, _Claim] = {}
        self._loops: dict[asyncio.AbstractEventLoop, LoopMailbox] = {}
        self._num_waiting = 0
        self._num_waiting_tokens = 0
        self._is_closing = False
        self._death: str | None = None
        self._told_of_death: list[Callable[[str], None]] = []

    @property
    def death(self) -> str | None:
        return self._death

    @property
    def num_live(self) -> int:
        return len(self._claims)

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    @property
    def live_ids(self) -> list[str]:
        with self._lock:
            return list(self._claims)

    def open_stream(self, request: EngineRequest) -> DeltaStream:
        """Claims a request for the running event loop. Raises as `claim` does."""
        mailbox = self._mailbox_of(asyncio.get_running_loop())
        if mailbox.has_stream(request.request_id):
            raise _in_use(request.request_id)
        self.claim(request, mailbox)
        return mailbox.open_stream(request.request_id, request.params.n)

    def claim(self, request: EngineRequest, mailbox: Mailbox) -> None:
        """Notes who gets a request's deltas. Raises RequestError, QueueFull, EngineDead."""
        num_tokens = len(request.prompt_token_ids)
        with self._lock:
            if self._death is not None:
                raise EngineDead(self._death)
            if self._is_closing:
                raise EngineDead("the engine is closing")
            if request.request_id in self._claims:
                raise _in_use(request.request_id)
            self._refuse_when_full(num_tokens)
            claim = _Claim(mailbox, set(range(request.params.n)), num_tokens)
            self._claims[request.request_id] = claim
            self._num_waiting += 1
            self._num_waiting_tokens += num_tokens

    def post(self, deltas: list[RequestDelta]) -> None:
        """One hand-over for each receiver; forgets the requests that have ended."""
        by_mailbox: dict[int, tuple[Mailbox, list[RequestDelta]]] = {}
        for delta in deltas:
            claim = self._claims.get(delta.request_id)
            if claim is None:
                continue  # its event loop is gone
            by_mailbox.setdefault(id(claim.mailbox), (claim.mailbox, []))[1].append(delta)
            # Before the hand-over: who has read a request's end may use its id again.
            self._note(claim, delta)
        for mailbox, part in by_mailbox.values():
            self._hand_over(mailbox, part)

    def start_closing(self) -> bool:
        """From now on nothing is claimed. Whether this is the first call."""
        with self._lock:
            is_first, self._is_closing = not self._is_closing, True
        return is_first

    def die(self, death: str, message: str) -> None:
        """Ends every stream with `message`, the sentence for clients; `death` says more, the first
        one why."""
        with self._lock:
            self._death = self._death or death
            told, self._told_of_death = self._told_of_death, []
        for tell in told:
            tell(self._death)
        self.end_all("error", message)

    def on_death(self, told: Callable[[str], None]) -> None:
        """`told` is called once, before any stream hears of it; at once where it has happened."""
        with self._lock:
            if self._death is None:
                self._told_of_death.append(told)
                return
        told(self._death)

    def end_all(self, reason: FinishReason, message: str | None = None) -> None:
        with self._lock:
            claims, self._claims = self._claims, {}
            self._num_waiting = self._num_waiting_tokens = 0
        for request_id, claim in claims.items():
            last = last_deltas(request_id, sorted(claim.live), reason, message)
            self._hand_over(claim.mailbox, last)

    def _refuse_when_full(self, num_tokens: int) -> None:
        if self._num_waiting >= self._limits.max_requests:
            raise QueueFull(f"{self._num_waiting} requests are waiting already")
        waiting = self._num_waiting_tokens
        if waiting and waiting + num_tokens > self._limits.max_tokens:
            raise QueueFull(
                f"prompts of {waiting} tokens are waiting already; {num_tokens} more would be over "
                f"the limit of {self._limits.max_tokens}"
            )

    def _note(self, claim: _Claim, delta: RequestDelta) -> None:
        if not claim.waits and delta.finish_reason is None:
            return
        with self._lock:
            if claim.waits:
                claim.waits = False
                self._num_waiting -= 1
                self._num_waiting_tokens -= claim.num_prompt_tokens
            if delta.finish_reason is not None:
                claim.live.discard(delta.index)
                if not claim.live:
                    self._claims.pop(delta.request_id, None)

    def _hand_over(self, mailbox: Mailbox, deltas: list[RequestDelta]) -> None:
        try:
            mailbox.post(deltas)
        except RuntimeError:
            # The event loop was closed with streams open: nobody reads, so nobody waits.
            request_ids = {delta.request_id for delta in deltas}
            log.warning("a receiver is gone, its requests are aborted", count=len(request_ids))
            for request_id in request_ids:
                self._abort(request_id)

    def _mailbox_of(self, loop: asyncio.AbstractEventLoop) -> LoopMailbox:
        with self._lock:
            mailbox = self._loops.get(loop)
            if mailbox is None:
                self._loops = {
                    known: m for known, m in self._loops.items() if not known.is_closed()
                }
                mailbox = self._loops[loop] = LoopMailbox(loop)
            return mailbox


def last_deltas(
    request_id: str, indices: Iterable[int], reason: FinishReason, error: str | None = None
) -> list[RequestDelta]:
    return [
        RequestDelta(
            request_id=request_id, index=i, token_ids=[], finish_reason=reason, error=error
        )
        for i in indices
    ]


def _in_use(request_id: str) -> RequestError:
    return RequestError(f"request id {request_id!r} is already in use", "request_id")

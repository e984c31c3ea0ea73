"""How deltas leave the core's thread: one hand-over a step for all requests of a receiver.

A mailbox is the receiver's side: an asyncio loop with a stream for each request, or a plain queue.
"""

import asyncio
from collections import deque
from queue import SimpleQueue
from typing import Protocol

from octavo_engine.messages import RequestDelta

_WAKES_A_TURN = 16
"""Readers woken in one turn of an event loop. What readers do with a step adds up to many
milliseconds; a turn between gives connections, probes and timers their part."""


class Mailbox(Protocol):
    def post(self, deltas: list[RequestDelta]) -> None:
        """Called by the core's thread. Raises RuntimeError when nobody will ever read it."""
        ...


class QueueMailbox:
    """For a caller that blocks: `get` returns what a step brought for all its requests."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[list[RequestDelta]] = SimpleQueue()

    def post(self, deltas: list[RequestDelta]) -> None:
        self._queue.put(deltas)

    def get(self) -> list[RequestDelta]:
        return self._queue.get()


class DeltaStream:
    """The deltas of one request, on one event loop; a slow reader gets several steps at once."""

    def __init__(self, num_sequences: int) -> None:
        self._num_live = num_sequences
        self._unread: list[RequestDelta] = []
        self._reader: asyncio.Future[None] | None = None

    def __aiter__(self) -> "DeltaStream":
        return self

    async def __anext__(self) -> list[RequestDelta]:
        while not self._unread:
            if self._num_live == 0:
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        unread, self._unread = self._unread, []
        return unread

    @property
    def has_ended(self) -> bool:
        return self._num_live == 0

    def push(self, delta: RequestDelta) -> bool:
        """Whether a reader waits and has to be woken for it, once."""
        is_first = not self._unread
        self._unread.append(delta)
        if delta.finish_reason is not None:
            self._num_live -= 1
        return is_first and self._reader is not None

    def wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class LoopMailbox:
    """The streams of one event loop. Only `post` is called from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._streams: dict[str, DeltaStream] = {}
        self._to_wake: deque[DeltaStream] = deque()

    def open_stream(self, request_id: str, num_sequences: int) -> DeltaStream:
        stream = self._streams[request_id] = DeltaStream(num_sequences)
        return stream

    def has_stream(self, request_id: str) -> bool:
        """Whether a stream of this id still waits for its end."""
        return request_id in self._streams

    def post(self, deltas: list[RequestDelta]) -> None:
        self._loop.call_soon_threadsafe(self._dispatch, deltas)

    def _dispatch(self, deltas: list[RequestDelta]) -> None:
        is_waking = bool(self._to_wake)
        for delta in deltas:
            stream = self._streams[delta.request_id]
            if stream.push(delta):
                self._to_wake.append(stream)
            if stream.has_ended:
                del self._streams[delta.request_id]
        if not is_waking:
            self._wake_some()

    def _wake_some(self) -> None:
        """A few a turn, in the order in which their deltas came; more of those may come meanwhile
        and are read at once."""
        for _ in range(min(_WAKES_A_TURN, len(self._to_wake))):
            self._to_wake.popleft().wake()
        if self._to_wake:
            self._loop.call_soon(self._wake_some)

"""How deltas leave the core's thread: one hand-over a step for all requests of a receiver.

A mailbox is the receiver's side: an asyncio loop with a stream for each request, or a plain queue.
"""

import asyncio
from queue import SimpleQueue
from typing import Protocol

from octavo_engine.messages import RequestDelta


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

    def push(self, delta: RequestDelta) -> None:
        self._unread.append(delta)
        if delta.finish_reason is not None:
            self._num_live -= 1
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class LoopMailbox:
    """The streams of one event loop. Only `post` is called from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._streams: dict[str, DeltaStream] = {}

    def open_stream(self, request_id: str, num_sequences: int) -> DeltaStream:
        stream = self._streams[request_id] = DeltaStream(num_sequences)
        return stream

    def has_stream(self, request_id: str) -> bool:
        """Whether a stream of this id still waits for its end."""
        return request_id in self._streams

    def post(self, deltas: list[RequestDelta]) -> None:
        self._loop.call_soon_threadsafe(self._dispatch, deltas)

    def _dispatch(self, deltas: list[RequestDelta]) -> None:
        for delta in deltas:
            stream = self._streams[delta.request_id]
            stream.push(delta)
            if stream.has_ended:
                del self._streams[delta.request_id]

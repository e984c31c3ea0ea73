"""Many streamed chats at once, each followed from its first byte to its last.

A stream has ended well only if the server said so; one that just stops was cut. Each is a
connection of its own, so that the Service spreads them over what answers at that moment.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import aiohttp

Fate = Literal["whole", "cut", "refused"]


@dataclass(frozen=True)
class Stream:
    begun_s: float
    """Monotonic, as is the end."""
    ended_s: float
    fate: Fate
    error: str = ""


@dataclass
class Streams:
    """`number` clients that ask again and again until told to stop."""

    base_url: str
    model: str
    number: int
    max_tokens: int
    done: list[Stream] = field(default_factory=list)
    num_running: int = 0
    """Streams of which a first token has come and not the last."""
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        asyncio.run(self._run())

    def stop(self) -> None:
        """Each client ends the stream that it has."""
        self._stop.set()

    def between(self, begin_s: float, end_s: float) -> list[Stream]:
        """Streams that ran at some moment of the interval and have ended."""
        return [each for each in self.done if each.begun_s < end_s and each.ended_s > begin_s]

    async def _run(self) -> None:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        timeout = aiohttp.ClientTimeout(total=600, sock_connect=20)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            await asyncio.gather(*(self._client(session, idx) for idx in range(self.number)))

    async def _client(self, session: aiohttp.ClientSession, client_idx: int) -> None:
        while not self._stop.is_set():
            begun_s = time.monotonic()
            fate, error = await self._ask(
                session, f"Tell me story {client_idx} about a lighthouse."
            )
            self.done.append(Stream(begun_s, time.monotonic(), fate, error))
            if fate != "whole":
                await asyncio.sleep(0.5)

    async def _ask(self, session: aiohttp.ClientSession, question: str) -> tuple[Fate, str]:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
        }
        is_running = False
        try:
            async with session.post(f"{self.base_url}/chat/completions", json=body) as answer:
                if answer.status != 200:
                    return "refused", f"{answer.status} {(await answer.text())[:200]}"
                self.num_running += 1
                is_running = True
                return await _until_its_end(answer.content)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return ("cut" if is_running else "refused"), f"{type(error).__name__}: {error}"
        finally:
            self.num_running -= is_running


async def _until_its_end(lines: aiohttp.StreamReader) -> tuple[Fate, str]:
    finish: str | None = None
    async for raw in lines:
        text = raw.decode().strip().removeprefix("data: ")
        if text == "[DONE]":
            return ("whole", "") if finish else ("cut", "ended without a finish reason")
        if text.startswith("{"):
            chunk = json.loads(text)
            if "error" in chunk:
                return "cut", str(chunk["error"])[:200]
            if chunk["choices"]:
                finish = chunk["choices"][0]["finish_reason"] or finish
    return "cut", "the connection ended before the stream did"


@contextmanager
def streaming(base_url: str, model: str, *, number: int, max_tokens: int) -> Iterator[Streams]:
    streams = Streams(base_url, model, number, max_tokens)
    thread = threading.Thread(target=streams.run, daemon=True)
    thread.start()
    try:
        yield streams
    finally:
        streams.stop()
        thread.join()

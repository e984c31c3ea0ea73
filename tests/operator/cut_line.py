"""A line to the API server that a test may cut: TCP through a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit


class CutLine:
    """Forwards connections from a port on loopback to the API server until it is cut."""

    def __init__(self, api_server_url: str) -> None:
        target = urlsplit(api_server_url)
        assert target.hostname is not None
        self._target = (target.hostname, target.port or 443)
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._forward, "127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Ends every connection, and every new one at once, until `mend`."""
        self._is_cut = True
        self._run(self._close_all())

    def mend(self) -> None:
        self._is_cut = False

    def remove(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=10)

    async def _end(self) -> None:
        self._server.close()
        self._is_cut = True
        await self._close_all()
        mine = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() if task is not mine]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _close_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        pair = {writer, far_writer}
        self._writers |= pair
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            self._writers -= pair
            for end in pair:
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
    except ConnectionError:
        writer.transport.abort()

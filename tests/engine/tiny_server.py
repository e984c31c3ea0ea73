"""The whole server over a tiny real model on the CPU, in this process, on a loopback port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from tests.engine.gguf_files import EOS_ID, hf_weights, write_gguf
from tests.engine.test_server_life import free_port, stop

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from octavo_engine.core.in_process import InProcessEngine, build_engine
from octavo_engine.server.run import serve
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.state import Loaded, ServerState
from octavo_engine.text.tokenizer import load_tokenizer

NAME = "tiny"
NO_END: dict[str, Any] = {"logit_bias": {str(EOS_ID): -100}}
"""Makes answers as long as allowed."""


@dataclass
class TinyServer:
    url: str
    http: httpx.AsyncClient
    engine: InProcessEngine

    @property
    def target(self) -> str:
        return self.url.removeprefix("http://")

    async def metric(self, line_start: str) -> float:
        """The sum over the samples whose lines begin so."""
        text = (await self.http.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith(line_start)]
        assert lines, f"no sample begins with {line_start}"
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def until_idle(self) -> None:
        for _ in range(600):
            stats = self.engine.stats()
            if not stats.has_work and await self.metric("octavo:http_requests_in_flight{") == 0:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"never idle: {self.engine.stats()}")


@asynccontextmanager
async def tiny_server(
    folder: Path, *, max_model_len: int = 256, max_num_seqs: int = 4, **settings: Any
) -> AsyncIterator[TinyServer]:
    model = write_gguf(folder / "tiny.gguf", hf_weights())
    config = EngineConfig(
        model=ModelSettings(
            path=str(model), device="cpu", dtype="float32", max_model_len=max_model_len
        ),
        cache=CacheSettings(cpu_kv_cache_gib=0.05, block_size=16),
        scheduler=SchedulerSettings(max_num_seqs=max_num_seqs),
    )
    engines: list[InProcessEngine] = []

    def load(state: ServerState) -> Loaded:
        engines.append(build_engine(config))
        return Loaded(engines[0], load_tokenizer(str(model)))

    port = free_port()
    names = {"served_model_names": (NAME,), "drain_grace_s": 0.0}
    server = ServerSettings(host="127.0.0.1", port=port, **names, **settings)  # type: ignore[arg-type]  # settings of several types
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    task = asyncio.ensure_future(serve(server, load))
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            while not await _is_ready(http):
                assert not task.done(), task.exception()
                await asyncio.sleep(0.05)
            yield TinyServer(url, http, engines[0])
    finally:
        if not task.done():
            stop()
            await asyncio.wait_for(task, 30)
        torch.set_num_threads(num_threads)


async def _is_ready(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/readyz")).status_code == 200
    except httpx.ConnectError:
        return False

"""Many clients at once, some of whom leave, huge prompts between them: what stays, who waits.

    python -m tests.bench.server.storm [--clients 200] [--tokens 32] [--core-process]

Serves SmolLM2 on this CPU in a process of its own. Prints how long /livez took meanwhile, the lag
of the event loop, and the server's counters afterwards, which must be zero. Exit code 1 when not.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import numpy as np
from tests.engine.server_process import serving_process
from tests.engine.test_server_life import free_port
from tests.tools.smollm2 import smollm2_folder

from octavo_engine.bench.http_stream import HttpClient
from octavo_engine.bench.sample import Sample, SampleReader

SHARE_LEAVING = 0.3
HUGE_PROMPT_CHARS = 200_000
ZERO_METRICS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "octavo:http_requests_in_flight",
    "octavo:kv_blocks{",
)
_NOT_ZERO = ("by_reason", 'state="cached"', 'state="free"')


@dataclass
class Storm:
    endings: Counter[str] = field(default_factory=Counter)
    livez_s: list[float] = field(default_factory=list)
    left_over: dict[str, float] = field(default_factory=dict)
    lag: dict[str, float] = field(default_factory=dict)

    def print(self) -> None:
        print("endings:", dict(self.endings))
        p50, p99 = np.percentile(self.livez_s, [50, 99]) * 1000
        worst, count = max(self.livez_s) * 1000, len(self.livez_s)
        print(f"{count} /livez: p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {worst:.1f} ms")
        print("event loop lag, samples up to:", self.lag)
        print("left over:", self.left_over)


async def run_storm(url: str, model: str, num_clients: int, num_tokens: int, seed: int) -> Storm:
    """Raises nothing for what a server does wrong: it is in the report."""
    storm, rng = Storm(), random.Random(seed)
    client = HttpClient(url + "/v1", {})
    prober = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("probe.py")), url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    huge = asyncio.ensure_future(_send_huge_prompts(client, model, storm))
    try:
        plans = [(rng.random() < SHARE_LEAVING, rng.random()) for _ in range(num_clients)]
        requests = [
            _request(client, _body(model, i, num_tokens), leaves, after, storm)
            for i, (leaves, after) in enumerate(plans)
        ]
        await asyncio.gather(*requests)
    finally:
        huge.cancel()
        output, _ = await prober.communicate(b"")
        client.close()
    if prober.returncode:
        raise RuntimeError(f"the prober has ended with code {prober.returncode}")
    storm.livez_s = json.loads(output)
    await _read_counters(url, storm)
    return storm


async def _request(
    client: HttpClient, body: bytes, leaves: bool, after: float, storm: Storm
) -> None:
    sample = Sample(start_s=time.perf_counter())
    reader = SampleReader(sample)
    asked = asyncio.ensure_future(
        client.post("/completions", body, lambda piece: reader.take(piece, time.perf_counter()))
    )
    if leaves:
        await asyncio.wait({asked}, timeout=after * 5)
        if not asked.done():
            asked.cancel()
            await asyncio.wait({asked})
            storm.endings["left"] += 1
            return
    try:
        reader.finish(await asked)
    except OSError as error:
        sample.error = repr(error)
    storm.endings["answered" if sample.error is None else sample.error] += 1


async def _send_huge_prompts(client: HttpClient, model: str, storm: Storm) -> None:
    """Words that no length check can refuse before they are tokenised, and more than fit."""
    words = "the quick brown fox jumps over the lazy dog "
    prompt = (words * (HUGE_PROMPT_CHARS // len(words) + 1))[:HUGE_PROMPT_CHARS]
    body = msgspec.json.encode({"model": model, "prompt": prompt})
    while True:
        status = await client.post("/completions", body, lambda _: None)
        storm.endings[f"huge prompt: {status}"] += 1
        await asyncio.sleep(0.2)


async def _read_counters(url: str, storm: Storm) -> None:
    async with httpx.AsyncClient(base_url=url) as http_client:
        for _ in range(100):
            text = (await http_client.get("/metrics")).text
            storm.left_over = {
                line.partition("{")[0]: float(line.rpartition(" ")[2])
                for line in text.splitlines()
                if line.startswith(ZERO_METRICS) and not any(part in line for part in _NOT_ZERO)
            }
            if not any(storm.left_over.values()):
                break
            await asyncio.sleep(0.1)
    for line in text.splitlines():
        if line.startswith("octavo:event_loop_lag_seconds_bucket"):
            bound = line.partition('le="')[2].partition('"')[0]
            storm.lag[bound] = float(line.rpartition(" ")[2])


def _body(model: str, number: int, num_tokens: int) -> bytes:
    fields = {"model": model, "prompt": f"Tell me about the number {number}.", "stream": True}
    return msgspec.json.encode({**fields, "max_tokens": num_tokens, "ignore_eos": True})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--core-process", action="store_true")
    asked = parser.parse_args()
    options = ["--served-model-name", "m"] + (["--core-process"] if asked.core_process else [])
    with serving_process(smollm2_folder(), free_port(), *options) as server:
        server.wait_ready()
        storm = asyncio.run(run_storm(server.url, "m", asked.clients, asked.tokens, seed=0))
    storm.print()
    sys.exit(1 if any(storm.left_over.values()) else 0)


if __name__ == "__main__":
    main()

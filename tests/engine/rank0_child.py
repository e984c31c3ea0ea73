"""What an engine of several ranks is asked, and a process that asks it and writes down the answers:

python -m tests.engine.rank0_child MODEL NUM_RANKS OUTPUT
"""

import asyncio
import sys
from pathlib import Path

import msgspec
from tests.engine.gguf_files import EOS_ID

from octavo_engine.config import (
    CacheSettings,
    EngineConfig,
    ModelSettings,
    ParallelSettings,
    SchedulerSettings,
)
from octavo_engine.core.in_process import build_engine
from octavo_engine.messages import EngineRequest, RequestDelta
from octavo_engine.sampling_params import SamplingParams

PROMPT = [5, 6, 7, 9]
NO_END = {EOS_ID: -100.0}
KINDS = {
    "greedy": SamplingParams(
        max_tokens=20, temperature=0.0, logit_bias=NO_END, logprobs=3, prompt_logprobs=2
    ),
    "drawn": SamplingParams(
        max_tokens=20, temperature=0.9, top_p=0.9, seed=4, n=2, logit_bias=NO_END
    ),
    "penalised": SamplingParams(
        max_tokens=20,
        temperature=0.0,
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        logit_bias=NO_END,
    ),
}

Answers = dict[str, list[RequestDelta]]
"""By kind."""


def config_of(model: Path, num_ranks: int) -> EngineConfig:
    return EngineConfig(
        model=ModelSettings(path=str(model), device="cpu", dtype="float32"),
        cache=CacheSettings(cpu_kv_cache_gib=0.05),
        scheduler=SchedulerSettings(max_num_seqs=4),
        parallel=ParallelSettings(tensor_parallel_size=num_ranks),
    )


async def answers(model: Path, num_ranks: int) -> Answers:
    engine = build_engine(config_of(model, num_ranks))
    found = {}
    for kind, params in KINDS.items():
        request = EngineRequest(request_id=kind, prompt_token_ids=PROMPT, params=params)
        stream = engine.submit(request)
        found[kind] = [delta async for deltas in stream for delta in deltas]
    await engine.close()
    return found


def main() -> None:
    found = asyncio.run(answers(Path(sys.argv[1]), int(sys.argv[2])))
    Path(sys.argv[3]).write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()

"""At its limits the engine stays within its share of the GPU: what start-up measured was enough."""

import json
from pathlib import Path

import pytest
import torch
from tests.bench.gpu_workloads import LLAMA_8B
from tests.engine.tiny_models import prompts

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from octavo_engine.core.engine import EngineCore
from octavo_engine.messages import EngineRequest
from octavo_engine.runner.build import build_runner
from octavo_engine.sampling_params import MAX_LOGPROBS, SamplingParams

NUM_ROWS = 256
SHARE = 0.5
SHALLOW = {"num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 14336}
"""Of a large vocabulary and wide inside, so that activations are what counts."""

WISHES = {
    "plain": SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
    "every option": SamplingParams(
        temperature=1.0, top_p=0.9, top_k=50, frequency_penalty=0.1, logprobs=MAX_LOGPROBS,
        max_tokens=4, ignore_eos=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("params", WISHES.values(), ids=WISHES.keys())
def test_full_steps_stay_within_the_share(params: SamplingParams, tmp_path: Path) -> None:
    raw = LLAMA_8B | SHALLOW | {"num_attention_heads": 8, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    _, total = torch.cuda.mem_get_info()
    scheduler = SchedulerSettings(max_num_seqs=NUM_ROWS)
    settings = ModelSettings(
        path=str(tmp_path), device="cuda", load_format="dummy", max_model_len=8192
    )
    cache = CacheSettings(gpu_memory_utilization=SHARE)
    runner = build_runner(EngineConfig(model=settings, cache=cache, scheduler=scheduler))
    core = EngineCore(runner, scheduler)
    lengths = [8000, *[300] * (NUM_ROWS - 1)]
    for idx, prompt in enumerate(prompts(lengths)):
        core.submit(EngineRequest(request_id=str(idx), prompt_token_ids=prompt, params=params))
    most_used = 0
    while core.has_work:
        for delta in core.step():
            assert delta.error is None, delta.error
        free, _ = torch.cuda.mem_get_info()
        most_used = max(most_used, total - free)
    assert most_used <= SHARE * total

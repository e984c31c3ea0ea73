"""An engine on the GPU for tests: a chosen number of pages, driven step by step in this thread."""

from pathlib import Path
from typing import Any

import torch

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from octavo_engine.core.engine import EngineCore
from octavo_engine.cuda.build import LoadedModel, RunnerParts
from octavo_engine.cuda.memory import capture_all
from octavo_engine.cuda.runner import CudaRunner
from octavo_engine.layers.linear import Build
from octavo_engine.loading.model_files import load_decoder, open_model
from octavo_engine.messages import EngineRequest
from octavo_engine.model_config import kv_groups
from octavo_engine.runner.kv_cache import PageShape
from octavo_engine.runner.sizing import Sizes
from octavo_engine.sampling_params import SamplingParams

MAX_MODEL_LEN = 256


def make_runner(
    folder: Path,
    *,
    dtype: torch.dtype,
    num_blocks: int = 200,
    block_size: int = 16,
    max_num_seqs: int = 12,
    captures: bool = True,
) -> CudaRunner:
    device = torch.device("cuda", torch.cuda.current_device())
    files = open_model(str(folder))
    config = files.model_config()
    groups = kv_groups([layer.window for layer in config.layers])
    build = Build(device, dtype, keeps_quantized=dtype.itemsize == 2)
    model = load_decoder(files, config, groups, build, files.scheme)
    shape = PageShape(
        num_kv_heads=config.num_kv_heads,
        block_size=block_size,
        head_dim=config.head_dim,
        dtype=dtype,
    )
    loaded = LoadedModel(
        model=model, config=config, groups=groups, shape=shape, context_len=MAX_MODEL_LEN
    )
    engine_config = EngineConfig(
        model=ModelSettings(path=str(folder), max_model_len=MAX_MODEL_LEN),
        cache=CacheSettings(block_size=block_size),
        scheduler=SchedulerSettings(max_num_seqs=max_num_seqs),
    )
    parts = RunnerParts(engine_config, loaded, device)
    runner = parts.runner(
        Sizes(
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=max_num_seqs,
            num_blocks=num_blocks,
            num_host_blocks=0,
        )
    )
    if captures:
        capture_all(runner, device)
    return runner


def make_core(runner: CudaRunner, **settings: Any) -> EngineCore:
    return EngineCore(runner, SchedulerSettings(**settings))


def generate(
    core: EngineCore, prompts: list[list[int]], params: SamplingParams, **request: Any
) -> list[list[int]]:
    """The tokens of each prompt, all running together."""
    for idx, prompt in enumerate(prompts):
        core.submit(
            EngineRequest(request_id=str(idx), prompt_token_ids=prompt, params=params, **request)
        )
    tokens: list[list[int]] = [[] for _ in prompts]
    while core.has_work:
        for delta in core.step():
            assert delta.error is None, delta.error
            tokens[int(delta.request_id)] += delta.token_ids
    core.check_integrity()
    return tokens


def greedy(num_new: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True)

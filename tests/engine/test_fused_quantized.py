"""A decoder's fused pass over packed weights gives the tokens of the layers one by one.

On a CPU, with the references of the kernels; tests/gpu runs the kernels.
"""

from pathlib import Path

import pytest
import torch
from tests.engine.fixture_reference import prompts_of, read_reference
from tests.engine.runner_driver import Job, run_jobs, tokens_of

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from octavo_engine.cuda.build import LoadedModel, RunnerParts
from octavo_engine.cuda.fused_decoder import FusedDecoder, fuse
from octavo_engine.layers.linear import Build
from octavo_engine.loading.model_files import load_decoder, open_model
from octavo_engine.model_config import kv_groups
from octavo_engine.models.decoder import Decoder
from octavo_engine.quantization import products
from octavo_engine.runner.kv_cache import PageShape
from octavo_engine.runner.sizing import Sizes
from octavo_kernels.packed_weight import PackedWeight

FIXTURES = Path(__file__).parents[1] / "fixtures"
CPU = torch.device("cpu")
MAX_NUM_SEQS = 4


@pytest.fixture(autouse=True)
def fuses_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def can_be_fused(weight: PackedWeight, dtype: torch.dtype, *, gated: bool) -> bool:
        return weight.num_rows % 128 == 0

    monkeypatch.setattr(products, "can_be_fused", can_be_fused)


def load(name: str) -> tuple[RunnerParts, Decoder]:
    files = open_model(str(FIXTURES / name))
    config = files.model_config()
    groups = kv_groups([layer.window for layer in config.layers])
    build = Build(CPU, torch.float32, keeps_quantized=True)
    model = load_decoder(files, config, groups, build, files.scheme)
    shape = PageShape(
        num_kv_heads=config.num_kv_heads,
        block_size=16,
        head_dim=config.head_dim,
        dtype=torch.float32,
    )
    loaded = LoadedModel(model=model, config=config, groups=groups, shape=shape, context_len=128)
    settings = EngineConfig(
        model=ModelSettings(path=name, dtype="float32", device="cpu"),
        cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.01),
        scheduler=SchedulerSettings(max_num_seqs=MAX_NUM_SEQS),
    )
    return RunnerParts(settings, loaded, CPU), model


def tokens(name: str, *, fused: bool) -> list[list[int]]:
    parts, model = load(name)
    if fused:
        parts.fused = fuse(model)
        assert isinstance(parts.fused, FusedDecoder)
    sizes = Sizes(max_model_len=128, max_num_seqs=MAX_NUM_SEQS, num_blocks=48, num_host_blocks=0)
    jobs = [Job(prompt["prompt"], 12) for prompt in prompts_of(read_reference(FIXTURES / name))]
    return tokens_of(run_jobs(parts.runner(sizes), jobs))


@pytest.mark.parametrize(
    "name", ["llama-ct-w4a16-g128-asym", "llama-gptq-int4-channel-sym", "llama-fp8-static"]
)
def test_fused_steps_give_the_tokens_of_unfused_ones(name: str) -> None:
    assert tokens(name, fused=True) == tokens(name, fused=False)


@pytest.mark.parametrize("name", ["llama-fp8-static", "llama-ct-w4a16-g128-asym"])
def test_steps_of_up_to_64_tokens_are_fused(name: str) -> None:
    decoder = fuse(load(name)[1])
    assert decoder is not None
    assert decoder.max_tokens == 64


def test_an_order_of_inputs_of_its_own_is_not_fused() -> None:
    assert fuse(load("llama-gptq-int4-g128-asym-act")[1]) is None

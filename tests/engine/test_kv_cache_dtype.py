"""Keys and values kept in 8 bits: what accuracy it costs, what it gains, whose scales it uses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.runner_driver import Job, run_jobs
from tests.engine.text_loss import TEXT, token_logprobs
from tests.engine.tiny_models import prompts, save_tiny

from octavo_engine.batch import BlockCopy, KVGroup
from octavo_engine.config import CacheSettings, EngineConfig, KVCacheDType, ModelSettings
from octavo_engine.errors import CheckpointError, ConfigError
from octavo_engine.loading.model_files import open_model
from octavo_engine.runner.build import build_runner
from octavo_engine.runner.kv_cache import KVCache, PageShape
from octavo_engine.runner.kv_scales import HEADROOM, STRIDE, choose_kv_scales
from octavo_engine.text.tokenizer import load_tokenizer
from octavo_kernels import KVScales
from octavo_kernels.metadata import PAGE_MAX

CPU = torch.device("cpu")
KINDS: tuple[KVCacheDType, ...] = ("auto", "fp8")


def config(path: Path, kv_cache_dtype: KVCacheDType, **model: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelSettings(path=str(path), dtype="float32", device="cpu", **model),
        cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.05, kv_cache_dtype=kv_cache_dtype),
    )


def logprobs(path: Path, kv_cache_dtype: KVCacheDType, token_ids: list[int]) -> torch.Tensor:
    runner = build_runner(config(path, kv_cache_dtype, max_model_len=max(256, len(token_ids) + 1)))
    found = token_logprobs(runner, token_ids)
    runner.close()
    return found


def test_the_loss_on_a_text_changes_by_less_than_a_hundredth(smollm2_path: Path) -> None:
    token_ids = load_tokenizer(str(smollm2_path)).encode(TEXT)
    exact, narrow = (logprobs(smollm2_path, kind, token_ids) for kind in KINDS)
    assert -exact.mean() > 1.0
    assert not torch.equal(narrow, exact)
    assert (narrow.mean() - exact.mean()).abs() < -0.01 * exact.mean()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_tiny("llama", folder)
    return folder


def test_the_same_memory_holds_four_times_the_tokens_of_float32(llama: Path) -> None:
    num_blocks = []
    for kind in KINDS:
        runner = build_runner(config(llama, kind))
        num_blocks.append(runner.info.num_blocks)
        runner.close()
    assert num_blocks[1] >= 4 * num_blocks[0]


@pytest.mark.parametrize("family", ["gemma2", "qwen3", "gpt_oss"])
def test_every_kind_of_layer_works_on_such_pages(family: str, tmp_path: Path) -> None:
    """Windows in a KV group of their own, soft-cap, QK-norm, sinks, experts. Random models are
    rough: a wrong scale moves logprobs by more than their own spread."""
    save_tiny(family, tmp_path)
    exact, narrow = (logprobs(tmp_path, kind, prompts([150])[0]) for kind in KINDS)
    assert (narrow - exact).abs().mean() < 0.5 * exact.std()


def test_copied_pages_hold_the_same_bytes() -> None:
    shape = PageShape(num_kv_heads=2, block_size=16, head_dim=8, dtype=torch.float8_e4m3fn)
    cache = KVCache(
        (KVGroup(layer_ids=(0,), window=None),), shape, num_blocks=4, num_host_blocks=2, device=CPU
    )
    page = torch.randn(2, 16, 8).to(torch.float8_e4m3fn)
    cache.layers[0].k[1] = page
    cache.swap_out([BlockCopy(1, 1)])
    cache.swap_in([BlockCopy(1, 3)])
    cache.copy([BlockCopy(3, 2)])
    for block in (2, 3):
        assert torch.equal(cache.layers[0].k[block].view(torch.uint8), page.view(torch.uint8))


def with_scales(folder: Path, target: Path, scales: dict[str, torch.Tensor]) -> Path:
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    weights = load_file(target / "model.safetensors")
    save_file(weights | scales, target / "model.safetensors", metadata={"format": "pt"})
    return target


def names(layer_id: int, k: str, v: str) -> tuple[str, str]:
    return tuple(f"model.layers.{layer_id}.self_attn.{name}" for name in (k, v))  # type: ignore[return-value]  # two of them


SPELLINGS = [
    ("k_scale", "v_scale"),
    ("attn.k_scale", "attn.v_scale"),
    ("k_proj.k_scale", "v_proj.v_scale"),
    ("k_proj.output_scale", "v_proj.output_scale"),
]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=[k for k, _ in SPELLINGS])
def test_a_checkpoints_own_scales_are_used(
    spelling: tuple[str, str], llama: Path, tmp_path: Path
) -> None:
    tensors = {}
    for layer_id in range(4):
        k, v = names(layer_id, *spelling)
        tensors |= {k: torch.tensor(0.5), v: torch.tensor([[[0.25]], [[2.0 + layer_id]]])}
    files = open_model(str(with_scales(llama, tmp_path, tensors)))
    stored = files.kv_scales(2, slice(0, 2), CPU)
    assert stored[3].k.tolist() == [0.5, 0.5]
    assert stored[3].v.tolist() == [0.25, 5.0]
    assert files.kv_scales(2, slice(1, 2), CPU)[3].v.tolist() == [5.0]
    runner = build_runner(config(tmp_path, "fp8"))
    used = [layer.scales for layer in runner._cache.layers]  # type: ignore[attr-defined]  # on a CPU
    assert [scales.k.tolist() for scales in used] == [[0.5, 0.5]] * 4
    assert [scales.v.tolist() for scales in used] == [[0.25, 2.0 + n] for n in range(4)]
    runner.close()
    build_runner(config(tmp_path, "auto")).close()


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"k_scale": torch.tensor(1.0)}, "layer 2 .* for cached keys but none for values"),
        ({"kv_scale": torch.ones(3)}, r"shape \[3\]: a scale is one number, or one for each of 2"),
        ({"kv_scale": torch.tensor(0.0)}, "holds 0, which is no scale"),
        ({"kv_scale": torch.tensor(float("nan"))}, "holds nan, which is no scale"),
    ],
)
def test_scales_that_cannot_be_are_refused(
    tensors: dict[str, torch.Tensor], said: str, llama: Path, tmp_path: Path
) -> None:
    named = {f"model.layers.2.self_attn.{name}": tensor for name, tensor in tensors.items()}
    with_scales(llama, tmp_path, named)
    with pytest.raises(CheckpointError, match=said):
        build_runner(config(tmp_path, "fp8"))


def test_measured_scales_leave_room_above_what_was_seen(llama: Path) -> None:
    files = open_model(str(llama))
    runner = build_runner(config(llama, "auto"))
    model = runner._model  # type: ignore[attr-defined]  # built with its weights
    shape = PageShape(
        num_kv_heads=2,
        block_size=16,
        head_dim=files.model_config().head_dim,
        dtype=torch.float32,
    )
    scales = choose_kv_scales(
        {1: KVScales(torch.ones(2), torch.ones(2))}, model, runner.kv_groups, shape,
        num_q_heads=4, vocab_size=128, context_len=100, device=CPU,
    )  # fmt: skip
    assert len(scales) == 4
    assert scales[1].k.tolist() == [1.0, 1.0]
    assert HEADROOM >= 2
    run_jobs(runner, [Job([(1 + idx * STRIDE) % 128 for idx in range(100)], 1)])
    page = runner._cache.layers[0]  # type: ignore[attr-defined]  # on a CPU
    for measured, pages in ((scales[0].k, page.k), (scales[0].v, page.v)):
        largest = pages.abs().amax(dim=(0, 2, 3))
        assert largest[0] != largest[1]
        torch.testing.assert_close(measured, largest * (HEADROOM / PAGE_MAX))
    runner.close()


def test_models_run_by_transformers_refuse_it(tmp_path: Path) -> None:
    raw = {
        "model_type": "starcoder2", "architectures": ["Starcoder2ForCausalLM"], "vocab_size": 128,
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(raw))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="kv_cache_dtype 'fp8' is not supported for model_type"):
        build_runner(config(tmp_path, "fp8"))

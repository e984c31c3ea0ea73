"""The wide layers over many tokens give the hidden states of the plain ones, for whom they take."""

from typing import Any

import pytest
import torch

from octavo_engine.cuda.wide_decoder import MIN_WIDE_TOKENS, takes_wide, widen
from octavo_engine.layers.context import GroupStep, LayerCache, StepContext
from octavo_engine.layers.linear import Build
from octavo_engine.loading.config_file import parse_config
from octavo_engine.model_config import kv_groups
from octavo_engine.models.decoder import Decoder
from octavo_engine.models.families import build_model_config
from octavo_engine.runner.rope_tables import RopeTables
from octavo_kernels import AttentionMetadata
from octavo_kernels.linear_ops import ForNorm

CPU = torch.device("cpu")
NUM_TOKENS, PAGE = 37, 16
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


def _decoder(**entries: Any) -> Decoder:
    config = build_model_config(parse_config({**CONFIG, **entries}, "a test's config"))
    groups = kv_groups([layer.window for layer in config.layers])
    decoder = Decoder(config, groups, Build(CPU, torch.float16))
    generator = torch.Generator().manual_seed(3)
    for slot in decoder.slots():
        drawn = torch.randn(slot.shape, generator=generator)
        slot.write(drawn * 0.06 if drawn.dim() > 1 else 1 + 0.2 * drawn)
    return decoder  # not finished: a CPU would pack the weights into a layout of its own


def _step(decoder: Decoder) -> tuple[torch.Tensor, StepContext, list[LayerCache]]:
    """One prompt over three pages."""
    positions = torch.arange(NUM_TOKENS)
    metadata = AttentionMetadata(
        query_start=torch.tensor([0, NUM_TOKENS], dtype=torch.int32),
        seq_lens=torch.tensor([NUM_TOKENS], dtype=torch.int32),
        block_table=torch.tensor([[1, 2, 3]], dtype=torch.int32),
        positions=positions,
        num_rows=1,
        num_decode_rows=0,
        max_query_len=NUM_TOKENS,
        max_seq_len=NUM_TOKENS,
        block_size=PAGE,
        seq_lens_host=[NUM_TOKENS],
        query_lens_host=[NUM_TOKENS],
    )
    ropes = RopeTables(decoder.ropes, max_model_len=64, device=CPU).step(positions, None)
    context = StepContext((GroupStep(metadata, positions + PAGE),), ropes)
    pages = torch.zeros(len(decoder.blocks), 2, 4, 2, PAGE, 64, dtype=torch.float16)
    caches = [LayerCache(k, v) for k, v in pages]
    return torch.arange(5, 5 + NUM_TOKENS), context, caches


@pytest.mark.parametrize(
    "entries",
    [{}, {"model_type": "qwen3"}, {"hidden_act": "gelu_pytorch_tanh"}, {"num_hidden_layers": 2}],
    ids=["llama", "qwen3", "gelu", "two layers"],
)
def test_wide_and_plain_layers_agree(entries: dict[str, Any]) -> None:
    decoder = _decoder(**entries)
    wide = widen(decoder)
    assert wide is not None
    token_ids, context, caches = _step(decoder)
    x: ForNorm = decoder.embed(token_ids)
    residual = None
    for block, cache in zip(decoder.blocks[:-1], caches, strict=False):
        x, residual = block(x, residual, context, cache)
    assert residual is not None
    assert isinstance(x, torch.Tensor)
    expected, pages = (x + residual).float(), [cache.k.float() for cache in caches[:-1]]
    token_ids, context, caches = _step(decoder)
    added, before = wide(decoder.embed(token_ids), context, caches[:-1])
    assert ((added + before).float() - expected).norm() < 3e-3 * expected.norm()
    for cache, page in zip(caches, pages, strict=False):
        assert (cache.k.float() - page).norm() < 5e-3 * page.norm()


@pytest.mark.parametrize(
    "entries",
    [
        {"num_hidden_layers": 1},
        {"model_type": "granite", "residual_multiplier": 0.5},
        {"model_type": "olmo2"},
        {"intermediate_size": 128},
        {"attention_bias": True},
    ],
    ids=["one layer", "scaled residual", "norms after", "ragged tiles", "biases"],
)
def test_other_kinds_are_left_alone(entries: dict[str, Any]) -> None:
    assert widen(_decoder(**entries)) is None


def test_few_tokens_are_left_to_other_passes() -> None:
    taken = [takes_wide(num_tokens) for num_tokens in range(1, 3 * MIN_WIDE_TOKENS)]
    assert taken == sorted(taken)
    assert taken.index(True) == MIN_WIDE_TOKENS - 1

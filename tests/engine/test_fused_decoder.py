"""The fused pass over few tokens gives the hidden states of the plain one, for whom it takes."""

from typing import Any

import pytest
import torch

from octavo_engine.cuda import fusable, fused_shares
from octavo_engine.cuda.fusable import fusable_blocks
from octavo_engine.cuda.fused_decoder import fuse
from octavo_engine.cuda.fused_pass import FusedPass
from octavo_engine.cuda.fused_shares import SharedFusedDecoder
from octavo_engine.layers.context import GroupStep, LayerCache, StepContext
from octavo_engine.layers.linear import Build
from octavo_engine.loading.config_file import parse_config
from octavo_engine.model_config import kv_groups
from octavo_engine.models.decoder import Decoder
from octavo_engine.models.families import build_model_config
from octavo_engine.runner.rope_tables import RopeTables
from octavo_kernels import AttentionMetadata

CPU = torch.device("cpu")
NUM_BEFORE = 5
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


@pytest.fixture(autouse=True)
def small_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusable, "MIN_GATE_TILES", 1)


def _step(num_rows: int) -> tuple[torch.Tensor, StepContext, list[LayerCache]]:
    """Each row behind some tokens in a page of its own, so that attention has a choice."""
    positions = torch.full((num_rows,), NUM_BEFORE, dtype=torch.int64)
    seq_len = NUM_BEFORE + 1
    metadata = AttentionMetadata(
        query_start=torch.arange(num_rows + 1, dtype=torch.int32),
        seq_lens=torch.full((num_rows,), seq_len, dtype=torch.int32),
        block_table=torch.arange(1, num_rows + 1, dtype=torch.int32)[:, None],
        positions=positions,
        num_rows=num_rows,
        num_decode_rows=num_rows,
        max_query_len=1,
        max_seq_len=seq_len,
        block_size=16,
        seq_lens_host=[seq_len] * num_rows,
        query_lens_host=[1] * num_rows,
    )
    group = GroupStep(metadata, torch.arange(1, num_rows + 1) * 16 + NUM_BEFORE)
    generator = torch.Generator().manual_seed(4)
    shape = (num_rows + 1, 2, 16, 64)
    pages = [torch.randn(shape, generator=generator).half() for _ in range(6)]
    caches = [LayerCache(k, v) for k, v in zip(pages[::2], pages[1::2], strict=True)]
    token_ids = torch.arange(5, 5 + num_rows, dtype=torch.int32)
    return token_ids, StepContext((group,), ()), caches


def _hidden(model: Decoder | FusedPass, decoder: Decoder, num_rows: int) -> torch.Tensor:
    token_ids, context, caches = _step(num_rows)
    ropes = RopeTables(decoder.ropes, max_model_len=64, device=CPU)
    context = StepContext(context.groups, ropes.step(torch.full((num_rows,), NUM_BEFORE), None))
    if isinstance(model, Decoder):
        return model.hidden_states(token_ids, context, caches).float()
    out = torch.full((num_rows, decoder.config.hidden_size), float("nan"), dtype=torch.float16)
    model.hidden_states_into(out, token_ids, context, caches)
    return out.float()


@pytest.mark.parametrize("num_rows", [1, 7, 64])
@pytest.mark.parametrize(
    "entries",
    [{}, {"model_type": "qwen3"}, {"attention_bias": True, "mlp_bias": True}],
    ids=["llama", "qwen3", "biases"],
)
def test_fused_and_plain_agree(entries: dict[str, Any], num_rows: int) -> None:
    decoder = _decoder(**entries)
    fused = fuse(decoder)
    assert fused is not None
    expected = _hidden(decoder, decoder, num_rows)
    error = (_hidden(fused, decoder, num_rows) - expected).norm() / expected.norm()
    assert error < 5e-3


@pytest.mark.parametrize("num_rows", [1, 7])
@pytest.mark.parametrize(
    "entries", [{}, {"attention_bias": True, "mlp_bias": True}], ids=["llama", "biases"]
)
def test_a_ranks_fused_pass_and_the_plain_one_agree(entries: dict[str, Any], num_rows: int) -> None:
    """Of a group of one; sums over more ranks are the group's own."""
    decoder = _decoder(**entries)
    blocks = fusable_blocks(decoder)
    assert blocks is not None
    expected = _hidden(decoder, decoder, num_rows)
    found = _hidden(SharedFusedDecoder(decoder, blocks), decoder, num_rows)
    assert (found - expected).norm() < 5e-3 * expected.norm()


def test_of_a_rank_the_products_behind_sums_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = _decoder()
    blocks = fusable_blocks(decoder)
    assert blocks is not None
    overlapped = []

    def noting(layer: Any, x: torch.Tensor, *, overlaps: bool, **others: Any) -> torch.Tensor:
        overlapped.append(overlaps)
        return fusable.multiply_one(layer, x, overlaps=overlaps, **others)

    monkeypatch.setattr(fused_shares, "multiply_one", noting)
    _hidden(SharedFusedDecoder(decoder, blocks), decoder, 1)
    # qkv, output, gate and up, down.
    assert overlapped == [True, False, True, False] * len(blocks)


@pytest.mark.parametrize(
    "entries",
    [
        {"model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh"},
        {"model_type": "granite", "residual_multiplier": 0.5},
        {"model_type": "olmo2"},
        {"intermediate_size": 96},
    ],
    ids=["gelu", "scaled residual", "norms after", "ragged tiles"],
)
def test_other_kinds_are_left_alone(entries: dict[str, Any]) -> None:
    assert fuse(_decoder(**entries)) is None

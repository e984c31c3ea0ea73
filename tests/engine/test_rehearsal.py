"""Which layers stand for all of them when kernels are compiled and loaded."""

from typing import Any

import pytest
import torch
from tests.engine.tiny_models import COMMON, FAMILY_CONFIGS

from octavo_engine.cuda.rehearsal import layers_to_rehearse, rehearsal_of
from octavo_engine.layers.linear import Build, DenseLinear
from octavo_engine.loading.config_file import parse_config
from octavo_engine.model_config import kv_groups
from octavo_engine.models.decoder import Decoder
from octavo_engine.models.families import build_model_config


def decoder_of(name: str, num_layers: int = 8, **entries: Any) -> Decoder:
    raw = {**COMMON, **FAMILY_CONFIGS[name], **entries, "num_hidden_layers": num_layers}
    if "layer_types" in raw:
        raw["layer_types"] = (raw["layer_types"] * num_layers)[:num_layers]
    raw["model_type"] = name.partition("-")[0]
    config = build_model_config(parse_config(raw, "a test's config"))
    groups = kv_groups([layer.window for layer in config.layers])
    build = Build(torch.device("cpu"), torch.float32)
    return Decoder(config, groups, build)


@pytest.mark.parametrize(
    ("name", "layer_ids"),
    [
        ("llama", [0, 1]),
        ("mixtral", [0, 1]),
        # Window and full layers take turns.
        ("gemma2", [0, 1, 2, 3]),
        # A layer without experts, which is one of its kind.
        ("qwen3_moe", [0, 1, 2]),
        # Every second layer turns nothing.
        ("smollm3", [0, 1, 2, 3]),
    ],
)
def test_two_layers_of_each_kind_are_rehearsed(name: str, layer_ids: list[int]) -> None:
    assert layers_to_rehearse(decoder_of(name)) == layer_ids


def test_groups_of_pages_are_kinds() -> None:
    """Five window layers to a full one make several groups of the former."""
    decoder = decoder_of(
        "gemma3_text", 6, layer_types=["sliding_attention"] * 5 + ["full_attention"]
    )
    assert layers_to_rehearse(decoder) == [0, 1, 2, 3, 4, 5]


def test_a_layer_whose_weights_are_stored_in_another_way_is_a_kind() -> None:
    decoder = decoder_of("llama")
    product = decoder.blocks[5].attention.qkv
    assert isinstance(product, DenseLinear)
    product.weight = product.weight.to(torch.float16)
    assert layers_to_rehearse(decoder) == [0, 1, 5, 7], "the last one's kind stays at the end"


def test_the_last_layer_rehearsed_is_of_the_last_layers_kind() -> None:
    """It computes rows of its own choice, planned for the pages of its group."""
    decoder = decoder_of("gemma2", 7)
    assert layers_to_rehearse(decoder) == [0, 1, 2, 3, 6]


def test_a_rehearsal_shares_the_weights_and_leaves_the_model_whole() -> None:
    decoder = decoder_of("llama")
    rehearsal = rehearsal_of(decoder, is_fused=False)
    assert len(decoder.blocks) == 8
    assert rehearsal.model.blocks == decoder.blocks[:2]
    assert rehearsal.model.vocabulary is decoder.vocabulary
    caches: Any = list(range(8))
    assert list[Any](rehearsal.caches(caches)) == [0, 1]

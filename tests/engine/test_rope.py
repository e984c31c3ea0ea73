"""cos and sin of every scaling kind are those of transformers, far beyond the original context."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from octavo_engine.errors import CheckpointError
from octavo_engine.rope import extended_context_len, parse_rope
from octavo_engine.rope_frequencies import cos_sin, inverse_frequencies
from octavo_engine.runner.rope_tables import RopeTables

HEAD_DIM = 64
ORIGINAL_LEN = 512
POSITIONS = torch.tensor([0, 1, 63, 511, 512, 513, 2047, 4095, 100_000])
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL_LEN,
    },
    "yarn": {"factor": 8.0, "original_max_position_embeddings": ORIGINAL_LEN},
    "yarn-mscale": {
        "factor": 8.0,
        "original_max_position_embeddings": ORIGINAL_LEN,
        "mscale": 0.7,
        "mscale_all_dim": 1.2,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn-not-truncated": {
        "factor": 32.0,
        "original_max_position_embeddings": ORIGINAL_LEN,
        "truncate": False,
    },
    "yarn-attention-factor": {
        "factor": 8.0,
        "original_max_position_embeddings": ORIGINAL_LEN,
        "attention_factor": 1.3,
    },
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.01 * i for i in range(HEAD_DIM // 2)],
    "long_factor": [2.0 + 0.5 * i for i in range(HEAD_DIM // 2)],
}


def llama_config(params: dict[str, Any], max_len: int = ORIGINAL_LEN) -> Any:
    return AutoConfig.for_model(
        "llama",
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=max_len,
        rope_parameters={"rope_theta": 10000.0, **params},
    )


def reference_cos_sin(rotary: Any, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = rotary(torch.zeros(1, dtype=torch.float32), positions[None])
    half = cos.shape[-1] // 2
    return cos[0, :, :half], sin[0, :, :half]


@pytest.mark.parametrize("name", KINDS)
def test_static_kinds_match_far_positions(name: str) -> None:
    params = {"rope_type": name.split("-")[0], **KINDS[name]}
    config = llama_config(params)
    rope = parse_rope(config.rope_parameters, head_dim=HEAD_DIM, max_position_embeddings=512)
    expected = reference_cos_sin(LlamaRotaryEmbedding(config), POSITIONS)
    for ours, theirs in zip(cos_sin(rope, POSITIONS), expected, strict=True):
        # float32 angles at position 100,000 are good to about 1e-2 in any order of operations.
        torch.testing.assert_close(ours[:-1], theirs[:-1], rtol=1e-5, atol=5e-4)
        torch.testing.assert_close(ours[-1], theirs[-1], rtol=0, atol=2e-2)


@pytest.mark.parametrize("seq_len", [100, 512, 513, 1000, 5000])
def test_dynamic_follows_the_length_of_the_sequence(seq_len: int) -> None:
    config = llama_config({"rope_type": "dynamic", "factor": 3.0})
    rope = parse_rope(config.rope_parameters, head_dim=HEAD_DIM, max_position_embeddings=512)
    positions = torch.arange(seq_len)
    expected = reference_cos_sin(LlamaRotaryEmbedding(config), positions)
    tables = RopeTables((rope,), max_model_len=8192, device=torch.device("cpu"))
    (step,) = tables.step(positions, torch.full((seq_len,), seq_len))
    torch.testing.assert_close(step.cos[step.positions], expected[0], rtol=1e-5, atol=5e-4)
    torch.testing.assert_close(step.sin[step.positions], expected[1], rtol=1e-5, atol=5e-4)


@pytest.mark.parametrize("seq_len", [511, 512, 513, 3000])
def test_longrope_switches_its_factors_after_the_original_context(seq_len: int) -> None:
    config = AutoConfig.for_model(
        "phi3",
        hidden_size=256,
        num_attention_heads=4,
        pad_token_id=0,
        max_position_embeddings=4096,
        original_max_position_embeddings=ORIGINAL_LEN,
        rope_parameters=dict(LONGROPE),
    )
    rope = parse_rope(
        config.rope_parameters,
        head_dim=HEAD_DIM,
        max_position_embeddings=4096,
        original_max_position_embeddings=ORIGINAL_LEN,
    )
    positions = torch.arange(seq_len)
    expected = reference_cos_sin(Phi3RotaryEmbedding(config), positions)
    tables = RopeTables((rope,), max_model_len=4096, device=torch.device("cpu"))
    (step,) = tables.step(positions, torch.full((seq_len,), seq_len))
    torch.testing.assert_close(step.cos[step.positions], expected[0], rtol=1e-5, atol=5e-4)
    torch.testing.assert_close(step.sin[step.positions], expected[1], rtol=1e-5, atol=5e-4)


def test_rows_of_a_step_rotate_by_their_own_lengths() -> None:
    params = {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10000.0}
    rope = parse_rope(params, head_dim=HEAD_DIM, max_position_embeddings=512)
    tables = RopeTables((rope,), max_model_len=8192, device=torch.device("cpu"))
    (step,) = tables.step(torch.tensor([7, 7]), torch.tensor([100, 2000]))
    cos = step.cos[step.positions]
    torch.testing.assert_close(cos[0], cos_sin(rope, torch.tensor([7]), 100)[0][0])
    torch.testing.assert_close(cos[1], cos_sin(rope, torch.tensor([7]), 2000)[0][0])
    assert not torch.equal(cos[0], cos[1])


def test_partial_rotation_has_a_frequency_for_each_pair_that_turns() -> None:
    params = {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    rope = parse_rope(params, head_dim=HEAD_DIM, max_position_embeddings=512)
    assert inverse_frequencies(rope).shape == (HEAD_DIM // 4,)


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="'spiral'"):
        parse_rope(
            {"rope_type": "spiral", "rope_theta": 1e4}, head_dim=64, max_position_embeddings=8
        )


def test_longrope_with_too_few_factors_is_refused_with_both_numbers() -> None:
    with pytest.raises(CheckpointError, match=r"32 numbers.*found 3 and 32"):
        parse_rope({**LONGROPE, "short_factor": [1.0] * 3}, head_dim=64, max_position_embeddings=8)


@pytest.mark.parametrize(
    ("params", "max_len", "expected"),
    [
        ({"rope_type": "default"}, 2048, 2048),
        ({"rope_type": "linear", "factor": 4.0}, 2048, 8192),
        ({"rope_type": "dynamic", "factor": 2.0}, 2048, 4096),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            40960,
            131072,
        ),
        (
            {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
            131072,
            131072,
        ),
    ],
)
def test_context_counts_the_extension_once(
    params: dict[str, Any], max_len: int, expected: int
) -> None:
    rope = parse_rope({"rope_theta": 1e4, **params}, head_dim=64, max_position_embeddings=max_len)
    assert extended_context_len(rope) == expected

"""What was asked for and what the checkpoint holds agree, or the process does not start."""

from typing import Any

import pytest

from octavo_engine.errors import ConfigError
from octavo_engine.quantization.choose import CHOICES, choose_scheme
from octavo_engine.quantization.read_config import read_scheme
from octavo_engine.quantization.scheme import Scheme


def scheme(raw: dict[str, Any]) -> Scheme:
    return read_scheme(raw, "config.json")


GPTQ = scheme({"quant_method": "gptq", "bits": 4, "group_size": 128})
FP8 = scheme({"quant_method": "fp8"})
INT8 = scheme(
    {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "channel"}}
        },
    }
)


@pytest.mark.parametrize("checkpoint", [GPTQ, FP8, INT8, None])
def test_auto_takes_what_the_checkpoint_says(checkpoint: Scheme | None) -> None:
    assert choose_scheme("auto", checkpoint, is_gguf=False) is checkpoint


@pytest.mark.parametrize(
    ("asked", "checkpoint"),
    [("gptq", GPTQ), ("fp8", FP8), ("int8", INT8), ("compressed-tensors", INT8)],
)
def test_asking_for_what_the_checkpoint_is_changes_nothing(asked: str, checkpoint: Scheme) -> None:
    assert choose_scheme(asked, checkpoint, is_gguf=False) is checkpoint


@pytest.mark.parametrize(
    ("asked", "checkpoint", "message"),
    [
        ("none", GPTQ, "'none' was asked for.*gptq .4 bits, groups of 128, symmetric"),
        ("awq", GPTQ, "'awq' was asked for.*gptq .4 bits"),
        ("fp8", GPTQ, "'fp8' was asked for.*gptq .4 bits"),
        ("fp8", INT8, "'fp8' was asked for.*int8, one scale a row"),
        ("int8", FP8, "'int8' was asked for.*fp8, one scale"),
        ("gptq", None, "'gptq' was asked for, but the checkpoint is not quantised"),
        ("int3", None, f"'int3' is not supported, only {', '.join(CHOICES)}"),
    ],
)
def test_a_contradiction_is_refused_naming_both(
    asked: str, checkpoint: Scheme | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_scheme(asked, checkpoint, is_gguf=False)


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_an_unquantised_checkpoint_is_quantised_at_load_but_for_its_head(kind: str) -> None:
    chosen = choose_scheme(kind, None, is_gguf=False)
    assert chosen is not None
    assert chosen.is_at_load
    assert chosen.linear("model.layers.0.mlp.down_proj") is not None
    assert chosen.linear("lm_head") is None


def test_a_gguf_file_is_not_quantised_again() -> None:
    assert choose_scheme("auto", None, is_gguf=True) is None
    with pytest.raises(ConfigError, match="'fp8' was asked for, but a GGUF file has its own"):
        choose_scheme("fp8", None, is_gguf=True)

"""What quantization_config says is read into a scheme; what we do not know is refused by name."""

from typing import Any

import pytest

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.awq import AwqFormat
from octavo_engine.quantization.bitsandbytes import Bnb4BitFormat, BnbInt8Format
from octavo_engine.quantization.format import WeightFormat
from octavo_engine.quantization.fp4 import Fp4Format
from octavo_engine.quantization.gptq import GptqFormat
from octavo_engine.quantization.inputs import InputFormat
from octavo_engine.quantization.packed import PackedFormat
from octavo_engine.quantization.read_config import read_scheme
from octavo_engine.quantization.scaled import PER_ROW, PER_TENSOR, ScaledFormat, Scales
from octavo_engine.quantization.scheme import LinearScheme

MODULE = "model.layers.1.self_attn.q_proj"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
AUTO_ROUND = {
    "quant_method": "auto-round",
    "packing_format": "auto_round:auto_gptq",
    "bits": 4,
    "group_size": 128,
    "sym": True,
}
AUTO_ROUND_FP8 = {
    "quant_method": "auto-round",
    "bits": 8,
    "group_size": [128, 128],
    "data_type": "fp",
    "fmt": "e4m3",
    "act_bits": 8,
    "act_data_type": "fp",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "packing_format": "auto_round:fp8",
}


def gptq_format(**changes: Any) -> GptqFormat:
    settings: dict[str, Any] = {
        "bits": 4,
        "group_size": 128,
        "is_symmetric": True,
        "uses_act_order": False,
        "zero_offset": 1,
    }
    return GptqFormat(**(settings | changes))


def compressed_tensors(
    file_format: str | None, weights: dict[str, Any], inputs: dict[str, Any] | None = None
) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": file_format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def weights(**changes: Any) -> dict[str, Any]:
    return {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128} | changes


def inputs(**changes: Any) -> dict[str, Any]:
    return {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True} | changes


FP8_ROWS = weights(num_bits=8, type="float", strategy="channel", group_size=None)
INT8_ROWS = weights(num_bits=8, strategy="channel", group_size=None)
FP4 = weights(type="float", strategy="tensor_group", group_size=16)
FP8_TOKENS = InputFormat(kind="fp8", is_dynamic=True)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (GPTQ, LinearScheme(weights=gptq_format())),
        (GPTQ | {"group_size": -1}, LinearScheme(weights=gptq_format(group_size=None))),
        (GPTQ | {"bits": 8}, LinearScheme(weights=gptq_format(bits=8))),
        (
            GPTQ | {"desc_act": True, "sym": False},
            LinearScheme(weights=gptq_format(uses_act_order=True, is_symmetric=False)),
        ),
        (
            GPTQ | {"checkpoint_format": "gptq_v2"},
            LinearScheme(weights=gptq_format(zero_offset=0)),
        ),
        (AUTO_ROUND, LinearScheme(weights=gptq_format())),
        (AUTO_ROUND | {"quant_method": "intel/auto-round"}, LinearScheme(weights=gptq_format())),
        (
            AUTO_ROUND | {"packing_format": "auto_round", "sym": False},
            LinearScheme(weights=gptq_format(is_symmetric=False, zero_offset=0)),
        ),
        (
            AUTO_ROUND_FP8,
            LinearScheme(
                weights=ScaledFormat(kind="fp8", scales=Scales(num_rows=128, num_inputs=128)),
                inputs=InputFormat(kind="fp8", is_dynamic=True, group_size=128),
            ),
        ),
        (
            AUTO_ROUND_FP8
            | {
                "packing_format": "auto_round:fp8_static",
                "activation_scheme": "static",
                "group_size": -1,
                "weight_block_size": None,
            },
            LinearScheme(
                weights=ScaledFormat(kind="fp8", scales=None),
                inputs=InputFormat(kind="fp8", is_dynamic=False),
            ),
        ),
        (
            AUTO_ROUND | {"packing_format": "auto_round:auto_awq"},
            LinearScheme(weights=AwqFormat(group_size=128)),
        ),
        (AWQ, LinearScheme(weights=AwqFormat(group_size=64))),
        (
            {"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "version": "GEMM"},
            LinearScheme(weights=AwqFormat(group_size=128)),
        ),
        (FP8, LinearScheme(weights=ScaledFormat(kind="fp8", scales=None), inputs=FP8_TOKENS)),
        (
            FP8 | {"activation_scheme": "static"},
            LinearScheme(
                weights=ScaledFormat(kind="fp8", scales=None),
                inputs=InputFormat(kind="fp8", is_dynamic=False),
            ),
        ),
        (
            FP8 | {"weight_block_size": [128, 64]},
            LinearScheme(
                weights=ScaledFormat(kind="fp8", scales=Scales(num_rows=128, num_inputs=64)),
                inputs=InputFormat(kind="fp8", is_dynamic=True, group_size=64),
            ),
        ),
        (
            compressed_tensors("pack-quantized", weights(symmetric=False, actorder="static")),
            LinearScheme(weights=PackedFormat(bits=4, group_size=128, is_symmetric=False)),
        ),
        (
            compressed_tensors("pack-quantized", weights(strategy="channel", group_size=None)),
            LinearScheme(weights=PackedFormat(bits=4, group_size=None, is_symmetric=True)),
        ),
        (
            compressed_tensors("float-quantized", FP8_ROWS, inputs()),
            LinearScheme(
                weights=ScaledFormat(kind="fp8", scales=PER_ROW),
                inputs=FP8_TOKENS,
            ),
        ),
        (
            compressed_tensors(
                "naive-quantized",
                weights(num_bits=8, type="float", strategy="tensor", group_size=None),
                inputs(strategy="tensor", dynamic=False),
            ),
            LinearScheme(
                weights=ScaledFormat(kind="fp8", scales=PER_TENSOR),
                inputs=InputFormat(kind="fp8", is_dynamic=False),
            ),
        ),
        (
            compressed_tensors(
                "float-quantized",
                FP8_ROWS | {"strategy": "block", "block_structure": "128x64"},
                inputs(strategy="group", group_size=64),
            ),
            LinearScheme(
                weights=ScaledFormat(kind="fp8", scales=Scales(num_rows=128, num_inputs=64)),
                inputs=InputFormat(kind="fp8", is_dynamic=True, group_size=64),
            ),
        ),
        (
            compressed_tensors("int-quantized", INT8_ROWS, inputs(type="int", symmetric=False)),
            LinearScheme(
                weights=ScaledFormat(kind="int8", scales=PER_ROW),
                inputs=InputFormat(kind="int8", is_dynamic=True, is_symmetric=False),
            ),
        ),
        (
            compressed_tensors("int-quantized", INT8_ROWS | {"num_bits": 4}, inputs()),
            LinearScheme(weights=ScaledFormat(kind="int8", scales=PER_ROW), inputs=FP8_TOKENS),
        ),
        (
            compressed_tensors("nvfp4-pack-quantized", FP4),
            LinearScheme(weights=Fp4Format("nvfp4")),
        ),
        (
            compressed_tensors("mxfp4-pack-quantized", FP4 | {"group_size": 32}),
            LinearScheme(weights=Fp4Format("mxfp4")),
        ),
        (
            compressed_tensors("nvfp4-pack-quantized", FP4, FP4 | {"dynamic": "local"}),
            LinearScheme(weights=Fp4Format("nvfp4", has_fp4_inputs=True)),
        ),
        (
            compressed_tensors("mxfp4-pack-quantized", FP4 | {"group_size": 32}, inputs()),
            LinearScheme(weights=Fp4Format("mxfp4"), inputs=FP8_TOKENS),
        ),
    ],
)
def test_a_config_is_read_into_its_scheme(raw: dict[str, Any], expected: LinearScheme) -> None:
    assert read_scheme(raw, "config.json").linear(MODULE) == expected


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"quant_method": "hqq"}, "method 'hqq' is not supported, only gptq, awq"),
        ({"bits": 4}, "method 'None' is not supported"),
        (GPTQ | {"bits": 3}, "gptq with 3 bits is not supported, only 4 and 8"),
        (GPTQ | {"bits": "four"}, r"Expected `int`, got `str` - at `\$.bits`"),
        (GPTQ | {"group_size": 0}, "group_size 0 is neither positive nor -1"),
        (GPTQ | {"checkpoint_format": "marlin"}, "gptq format 'marlin' is not supported"),
        (GPTQ | {"pack_dtype": "int64"}, "pack_dtype 'int64' is not supported"),
        (GPTQ | {"dynamic": {"+:(": {"bits": 8}}}, r"'\(' is not a regular expression"),
        (GPTQ | {"dynamic": {"+:a": {"bits": "8"}}}, "Expected `int`, got `str`"),
        (AUTO_ROUND | {"extra_config": {"a": {"bits": "8"}}}, "Expected `int`, got `str`"),
        (AWQ | {"version": "gemv"}, "awq version 'gemv' is not supported, only gemm"),
        (AWQ | {"bits": 8}, "awq with 8 bits is not supported"),
        (FP8 | {"fmt": "e5m2"}, "fp8 numbers 'e5m2' are not supported"),
        (
            FP8 | {"activation_scheme": "static", "weight_block_size": [128, 128]},
            r"'static' contradicts weight_block_size \[128, 128\]",
        ),
        (AUTO_ROUND | {"packing_format": "auto_round:exllamav2"}, "'auto_round:exllamav2' is not"),
        (AUTO_ROUND | {"act_bits": 8}, "act_bits 8 is not supported"),
        (AUTO_ROUND | {"group_size": [128, 128]}, r"group_size \[128, 128\] is not supported"),
        (AUTO_ROUND_FP8 | {"group_size": 64}, r"group_size 64 and weight_block_size \[128, 128\]"),
        (
            AUTO_ROUND_FP8 | {"weight_block_size": None},
            r"group_size \(128, 128\) and weight_block_size none is not supported",
        ),
        (AUTO_ROUND_FP8 | {"act_bits": 16}, "8 bits, act_bits 16 is not supported, only fp of 8"),
        (compressed_tensors("mxfp8-quantized", weights()), "'mxfp8-quantized' is not"),
        (
            compressed_tensors("nvfp4-pack-quantized", FP4 | {"group_size": 32}),
            "weights in nvfp4 of type 'float', 4 bits, group_size 32, symmetric True are not",
        ),
        (
            compressed_tensors("nvfp4-pack-quantized", FP4, FP4 | {"group_size": 32}),
            "inputs in nvfp4 of type 'float', 4 bits, group_size 32, symmetric True are not",
        ),
        (
            compressed_tensors("pack-quantized", weights(), inputs(num_bits=4, type="int")),
            r"inputs of 4 bits \(int\) are not supported, only of 8",
        ),
        (
            compressed_tensors("pack-quantized", weights(num_bits=3)),
            "group_0: pack-quantized int of 3 bits is not supported",
        ),
        (
            compressed_tensors("pack-quantized", weights(group_size=None)),
            "strategy 'group' without a group_size",
        ),
        (
            compressed_tensors("float-quantized", FP8_ROWS | {"num_bits": 4}),
            "type 'float' of 4 bits is not supported",
        ),
        (
            compressed_tensors("float-quantized", FP8_ROWS, inputs(dynamic=False)),
            "static inputs with strategy 'token' are not supported, only tensor",
        ),
        (
            compressed_tensors("float-quantized", FP8_ROWS, inputs(symmetric=False)),
            "asymmetric inputs are supported for int8",
        ),
        (
            compressed_tensors("int-quantized", INT8_ROWS) | {"sparsity_config": {"format": "24"}},
            "sparsity format '24' is not supported",
        ),
        (
            compressed_tensors("int-quantized", INT8_ROWS)
            | {"transform_config": {"config_groups": {"R1": {}}}},
            "transforms R1 are not supported",
        ),
        (compressed_tensors("int-quantized", INT8_ROWS) | {"config_groups": {}}, "is empty"),
    ],
)
def test_an_unknown_or_contradictory_config_is_refused_with_the_value(
    raw: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=f"config.json: .*{message}"):
        read_scheme(raw, "config.json")


def test_modules_left_out_are_not_quantised() -> None:
    awq = read_scheme(AWQ | {"modules_to_not_convert": ["block_sparse_moe.gate"]}, "c")
    assert awq.linear("model.layers.0.block_sparse_moe.gate") is None
    assert awq.linear(MODULE) is not None
    fp8 = read_scheme(FP8 | {"ignored_layers": ["lm_head"]}, "c")
    assert fp8.linear("lm_head") is None
    ignoring = compressed_tensors("int-quantized", INT8_ROWS) | {"ignore": ["re:.*q_proj"]}
    assert read_scheme(ignoring, "c").linear(MODULE) is None


def test_gptq_modules_may_differ_by_a_pattern_of_their_name() -> None:
    dynamic = {r"-:.*\.down_proj": {}, r"+:model\.layers\.1\.": {"bits": 8, "group_size": 32}}
    scheme = read_scheme(GPTQ | {"dynamic": dynamic}, "c")
    assert scheme.linear("model.layers.1.mlp.down_proj") is None
    assert scheme.linear(MODULE) == LinearScheme(weights=gptq_format(bits=8, group_size=32))
    other = scheme.linear("model.layers.0.self_attn.q_proj")
    assert other == LinearScheme(weights=gptq_format())


def test_auto_round_modules_may_differ_by_name() -> None:
    extra = {"model.layers.1.mlp.gate": {"bits": 16}, ".*q_proj": {"bits": 8}}
    scheme = read_scheme(AUTO_ROUND | {"extra_config": extra}, "c")
    assert scheme.linear("model.layers.1.mlp.gate") is None
    assert scheme.linear("model.layers.1.mlp.gate_proj") == LinearScheme(weights=gptq_format())
    assert scheme.linear(MODULE) == LinearScheme(weights=gptq_format(bits=8))


def test_a_target_by_name_goes_before_a_pattern_and_that_before_a_class() -> None:
    raw = compressed_tensors("int-quantized", INT8_ROWS)
    raw["config_groups"] |= {
        "by_pattern": {"targets": ["re:.*_proj"], "weights": FP8_ROWS},
        "by_name": {"targets": [MODULE], "weights": weights(), "format": "pack-quantized"},
    }
    scheme = read_scheme(raw, "c")
    packed = PackedFormat(bits=4, group_size=128, is_symmetric=True)
    assert scheme.linear(MODULE) == LinearScheme(weights=packed)
    by_pattern = LinearScheme(weights=ScaledFormat(kind="fp8", scales=PER_ROW))
    # float-quantized and int-quantized both store number by number: the group's numbers decide.
    assert scheme.linear("model.layers.0.mlp.up_proj") == by_pattern
    by_class = LinearScheme(weights=ScaledFormat(kind="int8", scales=PER_ROW))
    assert scheme.linear("model.layers.0.mlp.router") == by_class


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, Bnb4BitFormat("nf4")),
        ({"load_in_4bit": True}, Bnb4BitFormat("fp4")),
        ({"load_in_8bit": True}, BnbInt8Format()),
    ],
)
def test_bitsandbytes_says_its_width_by_flags(raw: dict[str, Any], expected: WeightFormat) -> None:
    scheme = read_scheme({"quant_method": "bitsandbytes", **raw}, "c")
    assert scheme.linear(MODULE) == LinearScheme(weights=expected)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "load_in_4bit False and load_in_8bit False: just one"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "int4"}, "quant_type 'int4' is not"),
        ({"load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"}, "storage 'bfloat16' is not"),
    ],
)
def test_bitsandbytes_configs_that_we_do_not_know_are_refused(
    raw: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_scheme({"quant_method": "bitsandbytes", **raw}, "c")

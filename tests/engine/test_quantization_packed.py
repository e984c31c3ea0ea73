"""Layers that keep quantised matrices as they are: the same results out of a fraction of the bytes.

The kernels' references stand in for the kernels on a CPU; what is tested is reading, packing,
joining and choosing.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine.fixture_reference import compare, prompts_of, read_reference

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.errors import CheckpointError
from octavo_engine.layers.linear import Build, DenseLinear, make_linear
from octavo_engine.loading.parts import Part
from octavo_engine.quantization.at_load import quantize_rows
from octavo_engine.quantization.awq import AwqFormat
from octavo_engine.quantization.checkpoint import QuantizedCheckpoint
from octavo_engine.quantization.choose import at_load_scheme
from octavo_engine.quantization.configs.common import EVERYTHING
from octavo_engine.quantization.format import WeightFormat
from octavo_engine.quantization.gptq import GptqFormat
from octavo_engine.quantization.inputs import InputFormat
from octavo_engine.quantization.matrix import QuantizedMatrix
from octavo_engine.quantization.packed import PackedFormat
from octavo_engine.quantization.products import EightBitLinear, PackedLinear, choose_product
from octavo_engine.quantization.scaled import PER_ROW, PER_TENSOR, ScaledFormat, Scales
from octavo_engine.quantization.scheme import LinearScheme, Rule, Scheme
from octavo_engine.runner import load
from octavo_engine.runner.build import build_runner
from octavo_kernels.reference.packed_linear import dequantize

FIXTURES = Path(__file__).parents[1] / "fixtures"
CPU = torch.device("cpu")
EXACT = [
    "gemma2-gptq-int4-g64-sym",
    "llama-ct-w4a16-g128-asym",
    "llama-fp8-block",
    "llama-fp8-static",
    "llama-gptq-int4-channel-sym",
    "llama-gptq-int4-g128-asym-act",
    "llama-gptq-int8-g128-sym",
    "phi3-gptq-int4-g64-sym",
    "qwen2-awq-int4-g64-asym",
    "qwen3moe-gptq-int4-g64-sym",
    "mixtral-fp8-dynamic",
]
GPTQ = GptqFormat(bits=4, group_size=128, is_symmetric=True, uses_act_order=True, zero_offset=1)


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds on a CPU as on a GPU."""

    def kept(device: torch.device, dtype: torch.dtype, **_: bool) -> Build:
        return Build(device, dtype, keeps_quantized=True)

    monkeypatch.setattr(load, "Build", kept)


def max_error(name: str) -> float:
    runner = build_runner(
        EngineConfig(
            model=ModelSettings(path=str(FIXTURES / name), device="cpu", dtype="float32"),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02),
        )
    )
    qkv = runner._model.blocks[0].attention.qkv  # type: ignore[attr-defined]  # of a decoder
    assert isinstance(qkv, PackedLinear)
    found = compare(runner, prompts_of(read_reference(FIXTURES / name)), 1e-3)
    runner.close()
    return max(prompt.max_logit_error for prompt in found)


@pytest.mark.usefixtures("keeping")
@pytest.mark.parametrize("name", EXACT)
def test_packed_weights_give_the_reference_logits(name: str) -> None:
    assert max_error(name) < 1e-3


@pytest.mark.usefixtures("keeping")
def test_int8_inputs_flip_no_more_than_those_of_dequantised_weights() -> None:
    assert max_error("llama-w8a8-int8") < 0.3


def layer_of(
    linear: LinearScheme, rows: tuple[int, ...], width: int, *, has_bias: bool = False
) -> PackedLinear:
    scheme = Scheme(method="gptq", rules=(Rule(EVERYTHING, linear),))
    parts = [Part(f"part{idx}", num_rows) for idx, num_rows in enumerate(rows)]
    made = make_linear(
        parts,
        width,
        has_bias=has_bias,
        build=Build(CPU, torch.float32, QuantizedCheckpoint(scheme, {}, CPU), keeps_quantized=True),
    )
    assert isinstance(made, PackedLinear)
    return made


def fill(layer: PackedLinear, matrices: list[QuantizedMatrix]) -> None:
    waiting: Iterator[QuantizedMatrix] = iter(matrices)
    for slot in layer.slots():
        if slot.write_quantized is not None:
            slot.write_quantized(next(waiting))
        else:
            slot.write(torch.arange(slot.shape[0]).float())
    layer.finish()


def int4_matrix(num_rows: int, width: int, groups: torch.Tensor | None) -> QuantizedMatrix:
    num_groups = -(-width // 128)
    return QuantizedMatrix(
        bits=4,
        values=torch.randint(0, 16, (num_rows, width), dtype=torch.uint8),
        scales=torch.rand(num_rows, num_groups) + 0.1,
        zeros=torch.randint(0, 16, (num_rows, num_groups)).float(),
        group_size=128,
        groups=groups,
    )


def shuffled_groups(width: int) -> torch.Tensor:
    return (torch.arange(width) // 128)[torch.randperm(width)]


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)


def fp8(*shape: int) -> torch.Tensor:
    return torch.rand(shape).to(torch.float8_e4m3fn)


def int8(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def half(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float16) + 0.1


SEVENS = 0x77777777
"""Zero points of 8, stored less one."""


@pytest.mark.parametrize(
    ("stored_as", "stored"),
    [
        (
            replace(GPTQ, uses_act_order=False),
            {
                "qweight": words(64, 256),
                "qzeros": torch.full((4, 32), SEVENS, dtype=torch.int32),
                "scales": half(4, 256),
            },
        ),
        (
            replace(GPTQ, uses_act_order=False, is_symmetric=False),
            {"qweight": words(64, 256), "qzeros": words(4, 32), "scales": half(4, 256)},
        ),
        (
            AwqFormat(group_size=64),
            {"qweight": words(512, 32), "qzeros": words(8, 32), "scales": half(8, 256)},
        ),
        (
            PackedFormat(bits=4, group_size=None, is_symmetric=True),
            {"weight_packed": words(256, 64), "weight_scale": half(256, 1)},
        ),
        (
            ScaledFormat(kind="fp8", scales=Scales(num_rows=128, num_inputs=128)),
            {"weight": fp8(256, 512), "weight_scale_inv": torch.rand(2, 4)},
        ),
        (
            ScaledFormat(kind="fp8", scales=PER_TENSOR),
            {"weight": fp8(256, 512), "weight_scale": torch.rand(1)},
        ),
        (
            ScaledFormat(kind="int8", scales=PER_ROW, is_symmetric=False),
            {
                "weight": int8(256, 512),
                "weight_scale": torch.rand(256, 1),
                "weight_zero_point": int8(256, 1),
            },
        ),
    ],
    ids=["gptq", "gptq with zeros", "awq", "rows of int4", "blocks", "tensor", "int8 with zeros"],
)
def test_a_matrix_takes_the_bytes_that_are_counted_before_it_is_read(
    stored_as: WeightFormat, stored: dict[str, torch.Tensor]
) -> None:
    shape = (256, 512)
    assert stored_as.packing is not None
    packed, _ = stored_as.read(stored, shape).pack()
    assert stored_as.packing.num_bytes(*shape) == packed.num_bytes


@pytest.mark.parametrize("shares_order", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_parts_in_an_order_of_their_own_each(shares_order: bool, has_bias: bool) -> None:
    torch.manual_seed(1)
    first = shuffled_groups(384)
    second = first if shares_order else shuffled_groups(384)
    matrices = [int4_matrix(32, 384, first), int4_matrix(16, 384, second)]
    layer = layer_of(LinearScheme(weights=GPTQ), (32, 16), 384, has_bias=has_bias)
    fill(layer, matrices)
    x = torch.randn(3, 384)
    expected = x @ torch.cat([matrix.dequantize() for matrix in matrices]).T
    if has_bias:
        expected += torch.cat([torch.arange(32), torch.arange(16)]).float()
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-3)


def test_groups_of_unequal_sizes_keep_every_scale() -> None:
    groups = torch.tensor([0] * 100 + [1] * 156)
    matrix = int4_matrix(16, 256, groups)
    packed, order = matrix.pack()
    assert order is None
    torch.testing.assert_close(dequantize(packed), matrix.dequantize(), rtol=1e-3, atol=1e-3)


def test_a_matrix_that_comes_dequantised_is_refused() -> None:
    layer = layer_of(LinearScheme(weights=GPTQ), (32,), 256)
    (slot,) = layer.slots()
    with pytest.raises(CheckpointError, match=r"part0.*\[32, 256\]"):
        slot.write(torch.zeros(32, 256))


def test_int4_takes_a_quarter_of_the_memory_and_what_its_scales_take() -> None:
    packed, _ = int4_matrix(256, 1024, None).pack()
    values, scales_and_zeros = 256 * 1024 // 2, 256 * 8 * (4 + 2)
    assert packed.num_bytes == values + scales_and_zeros


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_weights_quantised_at_load_stay_so(kind: str) -> None:
    (linear,) = at_load_scheme("fp8" if kind == "fp8" else "int8").linears()
    layer = layer_of(linear, (48,), 200)
    weight = torch.randn(48, 200)
    values, scales = quantize_rows(weight, "fp8" if kind == "fp8" else "int8")
    fill(layer, [QuantizedMatrix(bits=8, values=values, scales=scales)])
    assert isinstance(layer, EightBitLinear) == (kind == "fp8")
    x = torch.randn(5, 200)
    exact = x @ weight.T
    assert (layer(x) - exact).norm() / exact.norm() < (0.06 if kind == "fp8" else 0.01)


FP8_TOKENS = InputFormat(kind="fp8", is_dynamic=True)
INT8_TOKENS = InputFormat(kind="int8", is_dynamic=True)
BLOCKS = Scales(num_rows=128, num_inputs=128)


@pytest.mark.parametrize(
    ("weights", "inputs", "expected"),
    [
        (GPTQ, None, "packed"),
        (ScaledFormat(kind="fp8", scales=None), FP8_TOKENS, "eight_bit"),
        (
            ScaledFormat(kind="fp8", scales=BLOCKS),
            InputFormat(kind="fp8", is_dynamic=True, group_size=128),
            "eight_bit",
        ),
        (ScaledFormat(kind="int8", scales=PER_ROW), INT8_TOKENS, "eight_bit"),
        (ScaledFormat(kind="int8", scales=PER_ROW), None, "packed"),
        (ScaledFormat(kind="fp8", scales=BLOCKS), FP8_TOKENS, None),
        (ScaledFormat(kind="int8", scales=PER_ROW), FP8_TOKENS, None),
        (GPTQ, INT8_TOKENS, None),
        (ScaledFormat(kind="int8", scales=PER_ROW, is_symmetric=False), INT8_TOKENS, None),
        (
            ScaledFormat(kind="int8", scales=PER_ROW),
            InputFormat(kind="int8", is_dynamic=True, is_symmetric=False),
            None,
        ),
    ],
)
def test_which_product_multiplies(
    weights: GptqFormat | ScaledFormat, inputs: InputFormat | None, expected: str | None
) -> None:
    linears = [LinearScheme(weights=weights, inputs=inputs)] * 2
    assert choose_product(linears, CPU) == expected


def test_modules_of_different_formats_are_multiplied_dequantised() -> None:
    assert choose_product([LinearScheme(weights=GPTQ), None], CPU) is None


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 0), None), ((8, 9), "packed"), ((9, 0), "packed")]
)
def test_a_gpu_that_has_no_fp8_numbers_dequantises_them(
    capability: tuple[int, int], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo_kernels.gpu.launch.capability", lambda device: capability)
    fp8 = LinearScheme(weights=ScaledFormat(kind="fp8", scales=None))
    assert choose_product([fp8], torch.device("cuda")) == expected
    assert choose_product([LinearScheme(weights=GPTQ)], torch.device("cuda")) == "packed"


def test_a_cpu_dequantises() -> None:
    scheme = Scheme(method="gptq", rules=(Rule(EVERYTHING, LinearScheme(weights=GPTQ)),))
    build_on_cpu = Build(CPU, torch.float32, QuantizedCheckpoint(scheme, {}, CPU))
    layer = make_linear([Part("part", 32)], 256, has_bias=False, build=build_on_cpu)
    assert isinstance(layer, DenseLinear)

"""Inputs are rounded to the numbers of their format, by the scale that the config asks for."""

import pytest
import torch

from octavo_engine.errors import CheckpointError
from octavo_engine.loading.source import TensorInfo
from octavo_engine.quantization.inputs import InputFormat, round_dynamic, round_static
from octavo_engine.quantization.rounding import StaticRounding

FP8 = InputFormat(kind="fp8", is_dynamic=True)
INT8 = InputFormat(kind="int8", is_dynamic=True)
STATIC = InputFormat(kind="fp8", is_dynamic=False)


def test_fp8_rounds_to_three_bits_of_mantissa_below_a_largest_value_of_448() -> None:
    # 448 is its own image, so the scale is 1; between 256 and 512 fp8 steps by 32, near 1 by 1/8.
    x = torch.tensor([[448.0, 271.0, 273.0, 1.06, 1.07]])
    assert round_dynamic(x, FP8).tolist() == [[448.0, 256.0, 288.0, 1.0, 1.125]]


def test_int8_rounds_to_255_steps_over_twice_the_largest_value() -> None:
    x = torch.tensor([[127.5, 1.4, 1.6, -3.2]])
    assert round_dynamic(x, INT8).tolist() == [[127.0, 1.0, 2.0, -3.0]]


def test_asymmetric_int8_spends_its_steps_on_the_tokens_own_range() -> None:
    x = torch.tensor([[255.0, 0.4, 100.6]])
    fmt = InputFormat(kind="int8", is_dynamic=True, is_symmetric=False)
    assert round_dynamic(x, fmt).tolist() == [[255.0, 0.0, 101.0]]


@pytest.mark.parametrize("fmt", [FP8, INT8])
def test_a_token_is_rounded_the_same_whatever_else_is_in_the_batch(fmt: InputFormat) -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    alone = round_dynamic(x[:1], fmt)
    x[1] *= 1000
    assert torch.equal(round_dynamic(x, fmt)[:1], alone)


def test_groups_have_scales_of_their_own_and_the_last_may_be_short() -> None:
    fmt = InputFormat(kind="int8", is_dynamic=True, group_size=2)
    x = torch.tensor([[127.5, 1.4, 1275.0, 14.0, 12.75]])
    assert round_dynamic(x, fmt).tolist() == [[127.0, 1.0, 1270.0, 10.0, pytest.approx(12.7)]]


@pytest.mark.parametrize("fmt", [FP8, INT8])
def test_a_token_of_zeros_stays_zero(fmt: InputFormat) -> None:
    assert round_dynamic(torch.zeros(1, 4), fmt).tolist() == [[0.0] * 4]


def test_a_static_scale_saturates_what_is_larger() -> None:
    x = torch.tensor([[2.0 * 448.0, -5000.0, 2.12]])
    assert round_static(x, STATIC, torch.tensor(2.0)).tolist() == [[896.0, -896.0, 2.0]]


def test_rounding_keeps_the_dtype() -> None:
    x = torch.randn(2, 8).to(torch.bfloat16)
    assert round_dynamic(x, FP8).dtype == torch.bfloat16
    assert round_static(x, STATIC, torch.tensor(1.0)).dtype == torch.bfloat16


def static_rounding() -> StaticRounding:
    infos = {f"{name}.input_scale": TensorInfo((1,), "x.safetensors", "F32") for name in ("q", "k")}
    return StaticRounding(STATIC, ["q", "k"], infos, torch.device("cpu"))


def test_modules_packed_together_share_their_largest_static_scale() -> None:
    rounding = static_rounding()
    for slot, scale in zip(rounding.slots(), (0.5, 0.25), strict=True):
        slot.write(torch.tensor([scale]))
    assert float(rounding.scale) == 0.5


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_no_positive_number_is_refused(scale: float) -> None:
    slot = next(static_rounding().slots())
    with pytest.raises(CheckpointError, match=rf"'q.input_scale' is {scale}"):
        slot.write(torch.tensor([scale]))

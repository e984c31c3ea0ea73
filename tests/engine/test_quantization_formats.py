"""Each weight format gives back the weights that were packed into it by an own packer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine.errors import CheckpointError
from octavo_engine.loading.source import TensorInfo
from octavo_engine.quantization.awq import AwqFormat
from octavo_engine.quantization.bits import unpack_columns, unpack_rows
from octavo_engine.quantization.format import TensorInfos
from octavo_engine.quantization.fp4 import Fp4Format
from octavo_engine.quantization.gptq import GptqFormat
from octavo_engine.quantization.packed import PackedFormat
from octavo_engine.quantization.scaled import PER_ROW, PER_TENSOR, ScaledFormat, Scales

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
"""Nibble i of a word holds column AWQ_ORDER[i]."""


def to_int32(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word


def pack(values: torch.Tensor, bits: int, dim: int, order: list[int] | None = None) -> torch.Tensor:
    """By plain integer arithmetic: value `order[i]` of each run along `dim` goes to bits i*bits."""
    per_word = 32 // bits
    rows = values.tolist() if dim == 1 else values.t().tolist()
    order = order or list(range(per_word))
    words = [
        [
            to_int32(sum(row[first + value] << (bits * i) for i, value in enumerate(order)))
            for first in range(0, len(row), per_word)
        ]
        for row in rows
    ]
    packed = torch.tensor(words, dtype=torch.int32)
    return packed if dim == 1 else packed.t().contiguous()


def numbers(seed: int, highest: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, highest + 1, shape, generator=torch.Generator().manual_seed(seed))


def scales_of(seed: int, *shape: int) -> torch.Tensor:
    return 0.01 + torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def infos_of(module: str, stored: dict[str, torch.Tensor]) -> TensorInfos:
    dtypes = {torch.int32: "I32", torch.float32: "F32", torch.int8: "I8", torch.int64: "I64"}
    dtypes |= {torch.float8_e4m3fn: "F8_E4M3", torch.uint8: "U8"}
    return {
        f"{module}.{suffix}": TensorInfo(tuple(tensor.shape), "x.safetensors", dtypes[tensor.dtype])
        for suffix, tensor in stored.items()
    }


def test_the_low_bits_of_a_word_come_first() -> None:
    word = torch.tensor([[0x76543210]], dtype=torch.int32)
    assert unpack_rows(word, 4).flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert unpack_columns(word, 8).flatten().tolist() == [0x10, 0x32, 0x54, 0x76]


def test_a_word_with_its_highest_bit_set_unpacks_to_positive_values() -> None:
    word = torch.tensor([[to_int32(0xFEDCBA98)]], dtype=torch.int32)
    assert unpack_columns(word, 4).flatten().tolist() == [8, 9, 10, 11, 12, 13, 14, 15]


@settings(deadline=None, max_examples=20)
@given(
    bits=st.sampled_from([4, 8]),
    group_size=st.sampled_from([None, 8, 16, 32]),
    version=st.sampled_from([1, 2]),
    is_shuffled=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_gptq_gives_back_what_was_packed(
    bits: int, group_size: int | None, version: int, is_shuffled: bool, seed: int
) -> None:
    num_rows, in_features = 16, 48
    top = 2**bits - 1
    size = group_size or in_features
    num_groups = -(-in_features // size)
    values = numbers(seed, top, in_features, num_rows)
    zeros = numbers(seed + 1, top, num_groups, num_rows).clamp_min(1)
    scales = scales_of(seed, num_groups, num_rows)
    order = torch.arange(in_features) // size
    if is_shuffled:
        order = order[torch.randperm(in_features, generator=torch.Generator().manual_seed(seed))]
    stored = {
        "qweight": pack(values, bits, 0),
        "qzeros": pack(zeros - (1 if version == 1 else 0), bits, 1),
        "scales": scales,
        "g_idx": order.int(),
    }
    fmt = GptqFormat(
        bits=bits,
        group_size=group_size,
        is_symmetric=False,
        uses_act_order=is_shuffled,
        zero_offset=1 if version == 1 else 0,
    )
    shapes = fmt.tensors("m", (num_rows, in_features), infos_of("m", stored))
    assert {suffix: spec.shape for suffix, spec in shapes.items()} == {
        suffix: tuple(tensor.shape) for suffix, tensor in stored.items()
    }
    expected = ((values - zeros[order]) * scales[order]).t()
    assert torch.equal(fmt.dequantize(stored, (num_rows, in_features)), expected)


def test_gptq_version_1_gives_back_a_zero_point_of_zero_and_its_neighbour() -> None:
    zeros = torch.tensor([[3, 0, 5, 0, 0, 15, 1, 9]])
    word = int(pack(zeros, 4, 1))
    borrowed = torch.tensor([[to_int32((word - 0x11111111) % 2**32)]], dtype=torch.int32)
    fmt = GptqFormat(
        bits=4, group_size=None, is_symmetric=False, uses_act_order=False, zero_offset=1
    )
    values = torch.full((8, 8), 9)
    stored = {"qweight": pack(values, 4, 0), "qzeros": borrowed, "scales": torch.ones(1, 8)}
    assert fmt.dequantize(stored, (8, 8))[:, 0].tolist() == (9 - zeros[0]).tolist()


def test_gptq_takes_a_g_idx_left_at_zero_as_groups_in_order() -> None:
    fmt = GptqFormat(bits=8, group_size=4, is_symmetric=True, uses_act_order=False, zero_offset=0)
    stored = {
        "qweight": pack(torch.full((8, 4), 129), 8, 0),
        "qzeros": pack(torch.full((2, 4), 128), 8, 1),
        "scales": torch.tensor([[1.0] * 4, [2.0] * 4]),
        "g_idx": torch.zeros(8, dtype=torch.int32),
    }
    assert fmt.dequantize(stored, (4, 8))[0].tolist() == [1.0] * 4 + [2.0] * 4


def test_a_g_idx_beyond_the_groups_is_refused_with_the_numbers() -> None:
    fmt = GptqFormat(bits=8, group_size=4, is_symmetric=True, uses_act_order=True, zero_offset=0)
    stored = {
        "qweight": pack(torch.full((8, 4), 129), 8, 0),
        "qzeros": pack(torch.full((2, 4), 128), 8, 1),
        "scales": torch.ones(2, 4),
        "g_idx": torch.tensor([0, 0, 0, 0, 1, 1, 1, 2], dtype=torch.int32),
    }
    with pytest.raises(CheckpointError, match=r"group 2, but there are groups 0 to 1"):
        fmt.dequantize(stored, (4, 8))


@settings(deadline=None, max_examples=10)
@given(group_size=st.sampled_from([None, 8, 16]), seed=st.integers(0, 1000))
def test_awq_gives_back_what_was_packed(group_size: int | None, seed: int) -> None:
    num_rows, in_features = 24, 32
    size = group_size or in_features
    values = numbers(seed, 15, in_features, num_rows)
    zeros = numbers(seed + 1, 15, in_features // size, num_rows)
    scales = scales_of(seed, in_features // size, num_rows)
    stored = {
        "qweight": pack(values, 4, 1, AWQ_ORDER),
        "qzeros": pack(zeros, 4, 1, AWQ_ORDER),
        "scales": scales,
    }
    order = torch.arange(in_features) // size
    expected = ((values - zeros[order]) * scales[order]).t()
    dequantized = AwqFormat(group_size=group_size).dequantize(stored, (num_rows, in_features))
    assert torch.equal(dequantized, expected)


@pytest.mark.parametrize(
    ("shape", "what"),
    [((20, 64), "20 rows.*multiple of 8"), ((16, 40), "40 inputs.*multiple of 32")],
)
def test_awq_refuses_sizes_that_it_cannot_pack(shape: tuple[int, int], what: str) -> None:
    with pytest.raises(CheckpointError, match=f"module 'm' has {what}"):
        AwqFormat(group_size=32).tensors("m", shape, {})


@settings(deadline=None, max_examples=20)
@given(
    bits=st.sampled_from([4, 8]),
    group_size=st.sampled_from([None, 16]),
    zero_kind=st.sampled_from(["symmetric", "packed", "bytes"]),
    seed=st.integers(0, 1000),
)
def test_pack_quantized_gives_back_what_was_packed(
    bits: int, group_size: int | None, zero_kind: str, seed: int
) -> None:
    num_rows, in_features = 8, 48
    middle = 2 ** (bits - 1)
    size = group_size or in_features
    num_groups = in_features // size
    values = numbers(seed, 2 * middle - 1, num_rows, in_features)
    scales = scales_of(seed, num_rows, num_groups)
    zeros = torch.full((num_rows, num_groups), middle)
    stored = {
        "weight_packed": pack(values, bits, 1),
        "weight_scale": scales,
        "weight_shape": torch.tensor([num_rows, in_features]),
    }
    if zero_kind != "symmetric":
        zeros = numbers(seed + 1, 2 * middle - 1, num_rows, num_groups)
        is_packed = zero_kind == "packed"
        stored["weight_zero_point"] = (
            pack(zeros, bits, 0) if is_packed else (zeros - middle).to(torch.int8)
        )
    fmt = PackedFormat(bits=bits, group_size=group_size, is_symmetric=zero_kind == "symmetric")
    shapes = fmt.tensors("m", (num_rows, in_features), infos_of("m", stored))
    assert {suffix: spec.shape for suffix, spec in shapes.items()} == {
        suffix: tuple(tensor.shape) for suffix, tensor in stored.items()
    }
    order = torch.arange(in_features) // size
    expected = (values - zeros[:, order]) * scales[:, order]
    assert torch.equal(fmt.dequantize(stored, (num_rows, in_features)), expected)


def test_pack_quantized_follows_a_stored_order_of_groups() -> None:
    fmt = PackedFormat(bits=8, group_size=2, is_symmetric=True)
    stored = {
        "weight_packed": pack(torch.full((1, 4), 129), 8, 1),
        "weight_scale": torch.tensor([[1.0, 2.0]]),
        "weight_g_idx": torch.tensor([1, 0, 0, 1], dtype=torch.int32),
    }
    assert fmt.dequantize(stored, (1, 4)).tolist() == [[2.0, 1.0, 1.0, 2.0]]


def test_pack_quantized_refuses_a_shape_other_than_the_models() -> None:
    fmt = PackedFormat(bits=8, group_size=None, is_symmetric=True)
    stored = {
        "weight_packed": pack(torch.full((1, 4), 129), 8, 1),
        "weight_scale": torch.ones(1, 1),
        "weight_shape": torch.tensor([2, 4]),
    }
    with pytest.raises(CheckpointError, match=r"weight_shape says \[2, 4\].*\[1, 4\]"):
        fmt.dequantize(stored, (1, 4))


def test_blocks_of_scales_cover_their_own_rows_and_inputs_and_may_be_short() -> None:
    fmt = ScaledFormat(kind="fp8", scales=Scales(num_rows=2, num_inputs=3))
    stored = {
        "weight": torch.ones(3, 4).to(torch.float8_e4m3fn),
        "weight_scale_inv": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    }
    assert fmt.tensors("m", (3, 4), infos_of("m", stored))["weight_scale_inv"].shape == (2, 2)
    assert fmt.dequantize(stored, (3, 4)).tolist() == [
        [1.0, 1.0, 1.0, 2.0],
        [1.0, 1.0, 1.0, 2.0],
        [3.0, 3.0, 3.0, 4.0],
    ]


@pytest.mark.parametrize(
    ("scales", "shape", "expected"),
    [
        (PER_TENSOR, (), [[2.0, 2.0], [2.0, 2.0]]),
        (PER_TENSOR, (1,), [[2.0, 2.0], [2.0, 2.0]]),
        (PER_ROW, (2,), [[2.0, 2.0], [3.0, 3.0]]),
        (PER_ROW, (2, 1), [[2.0, 2.0], [3.0, 3.0]]),
        (None, (2, 1), [[2.0, 2.0], [3.0, 3.0]]),
        (None, (1, 1), [[2.0, 2.0], [2.0, 2.0]]),
        (Scales(num_rows=1, num_inputs=1), (2, 2), [[2.0, 3.0], [4.0, 5.0]]),
    ],
)
def test_scales_are_accepted_in_the_shapes_that_tools_write(
    scales: Scales | None, shape: tuple[int, ...], expected: list[list[float]]
) -> None:
    count = torch.Size(shape).numel()
    stored = {
        "weight": torch.ones(2, 2, dtype=torch.int8),
        "weight_scale": torch.arange(2.0, 2.0 + count).reshape(shape),
    }
    fmt = ScaledFormat(kind="int8", scales=scales)
    assert fmt.tensors("m", (2, 2), infos_of("m", stored))["weight_scale"].shape == shape
    assert fmt.dequantize(stored, (2, 2)).tolist() == expected


def test_asymmetric_int8_subtracts_its_zero_points() -> None:
    fmt = ScaledFormat(kind="int8", scales=PER_ROW, is_symmetric=False)
    stored = {
        "weight": torch.tensor([[-128, 127]], dtype=torch.int8),
        "weight_scale": torch.tensor([[0.5]]),
        "weight_zero_point": torch.tensor([[-28]], dtype=torch.int8),
    }
    assert fmt.dequantize(stored, (1, 2)).tolist() == [[-50.0, 77.5]]


FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
"""Of codes 0 to 7; with 8 added they are negative."""


@pytest.mark.parametrize("group_size", [16, 32])
def test_4_bit_floats_give_back_what_was_packed(group_size: int) -> None:
    codes = numbers(4, 15, 6, 64)
    values = torch.tensor(FP4 + [-one for one in FP4])[codes]
    stored = {"weight_packed": (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)}
    num_groups = 64 // group_size
    if group_size == 16:
        fmt = Fp4Format("nvfp4")
        scales = scales_of(5, 6, num_groups).mul(400).to(torch.float8_e4m3fn)
        stored |= {"weight_scale": scales, "weight_global_scale": torch.tensor([300.0])}
        factors = scales.float() / 300
    else:
        fmt = Fp4Format("mxfp4")
        scales = 110 + numbers(6, 20, 6, num_groups)
        stored["weight_scale"] = scales.to(torch.uint8)
        factors = 2.0 ** (scales.float() - 127)
    shapes = fmt.tensors("m", (6, 64), infos_of("m", stored))
    assert {suffix: spec.shape for suffix, spec in shapes.items()} == {
        suffix: tuple(tensor.shape) for suffix, tensor in stored.items()
    }
    assert {spec.dtypes[0] for spec in shapes.values()} <= {"U8", "F8_E4M3", "F32"}
    expected = values * factors.repeat_interleave(group_size, 1)
    torch.testing.assert_close(fmt.dequantize(stored, (6, 64)), expected)


def test_the_scale_of_rounded_inputs_is_stored_and_not_needed() -> None:
    """No GPU here multiplies 4-bit floats: inputs stay as they are."""
    fmt = Fp4Format("nvfp4", has_fp4_inputs=True)
    stored = {
        "weight_packed": torch.full((1, 8), 0x22, dtype=torch.uint8),
        "weight_scale": torch.ones(1, 1).to(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([4.0]),
        "input_global_scale": torch.tensor([1000.0]),
    }
    assert fmt.tensors("m", (1, 16), infos_of("m", stored)).keys() == stored.keys()
    assert fmt.dequantize(stored, (1, 16)).tolist() == [[0.25] * 16]
    assert fmt.describe() == "nvfp4, one scale for 16, inputs in 16 bits where 4 are asked for"


def test_a_row_that_scales_do_not_divide_is_refused_with_the_numbers() -> None:
    with pytest.raises(CheckpointError, match="'m' has 40 inputs, which is not a multiple of 16"):
        Fp4Format("nvfp4").tensors("m", (8, 40), {})


@pytest.mark.parametrize(("scale", "whole"), [(1.0, 0.0), (float("nan"), 2.0)])
def test_a_scale_that_is_no_number_is_refused(scale: float, whole: float) -> None:
    stored = {
        "weight_packed": torch.zeros(1, 8, dtype=torch.uint8),
        "weight_scale": torch.tensor([[scale]]).to(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([whole]),
    }
    with pytest.raises(CheckpointError, match=f"weight_global_scale {whole:g} is no finite number"):
        Fp4Format("nvfp4").dequantize(stored, (1, 16))

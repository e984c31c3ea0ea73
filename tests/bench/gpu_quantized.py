"""Quantised models with random weights for the benchmarks: schemes, and matrices for them."""

import torch

from octavo_engine.quantization.at_load import AtLoadFormat, quantize_rows
from octavo_engine.quantization.choose import at_load_scheme
from octavo_engine.quantization.configs.common import EVERYTHING
from octavo_engine.quantization.gptq import GptqFormat
from octavo_engine.quantization.inputs import InputFormat
from octavo_engine.quantization.matrix import QuantizedMatrix
from octavo_engine.quantization.scheme import LinearScheme, Matcher, Rule, Scheme

GROUP_SIZE = 128
MATRIX_RANGE = 0.02
NIBBLE_RANGE = 4.3
"""Standard deviation of 1 to 15."""
HEAD = Rule(Matcher("exact", "lm_head"), None)
"""It stays as it is."""


def scheme_named(name: str) -> Scheme:
    """int4: GPTQ in groups of 128, symmetric; fp8 as it is made at load; int8: W8A8 as
    llm-compressor writes it, with one scale a row and one a token."""
    if name == "fp8":
        return at_load_scheme("fp8")
    if name == "int8":
        rounding = InputFormat(kind="int8", is_dynamic=True)
        linear = LinearScheme(weights=AtLoadFormat("int8"), inputs=rounding)
        return Scheme(method="compressed-tensors", rules=(HEAD, Rule(EVERYTHING, linear)))
    if name != "int4":
        raise ValueError(f"no benchmark of {name!r}, only of int4, fp8 and int8")
    weights = GptqFormat(
        bits=4, group_size=GROUP_SIZE, is_symmetric=True, uses_act_order=False, zero_offset=1
    )
    return Scheme(method="gptq", rules=(HEAD, Rule(EVERYTHING, LinearScheme(weights=weights))))


def random_matrix(name: str, shape: tuple[int, ...], device: torch.device) -> QuantizedMatrix:
    """Small numbers without a mean: others saturate the softmax of deep random models."""
    num_rows, width = shape
    if name != "int4":
        weight = torch.empty(num_rows, width, dtype=torch.bfloat16, device=device)
        kind = "fp8" if name == "fp8" else "int8"
        values, scales = quantize_rows(weight.normal_(0, MATRIX_RANGE), kind)
        return QuantizedMatrix(bits=8, values=values, scales=scales)
    values = torch.randint(1, 16, (num_rows, width), dtype=torch.uint8, device=device)
    scales = torch.empty(num_rows, width // GROUP_SIZE, dtype=torch.float16, device=device)
    scales.uniform_(0.5, 1.5).mul_(MATRIX_RANGE / NIBBLE_RANGE)
    zeros = torch.full_like(scales, 8.0)
    return QuantizedMatrix(bits=4, values=values, scales=scales, zeros=zeros, group_size=GROUP_SIZE)

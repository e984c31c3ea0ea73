"""Launches of what a decode step does around attention, for `compile_sm90`: nothing is filled."""

import dataclasses

import torch

from octavo_kernels.gpu import row_ops
from octavo_kernels.gpu.embed import embed_rows
from octavo_kernels.gpu.hopper_skinny import hopper_skinny_linear
from octavo_kernels.gpu.kv_write import kv_write
from octavo_kernels.gpu.sampling import commit_largest
from octavo_kernels.gpu.single_row import single_row_linear
from octavo_kernels.gpu.skinny_linear import skinny_linear
from octavo_kernels.linear_ops import (
    MAX_SKINNY_TOKENS,
    MAX_TILES,
    NormInput,
    NormOutput,
    RowNorm,
)
from octavo_kernels.metadata import SamplingTensors
from octavo_kernels.row_ops import DecodeInputs

DTYPE = torch.bfloat16
NUM_ROWS = 4


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def row_launches() -> None:
    rows, table = ints(NUM_ROWS), ints(64, 8193)
    longs, numbers = rows.long(), torch.ones(NUM_ROWS)
    row_ops.write_words(table.view(-1), rows, rows)
    inputs = DecodeInputs(rows, longs, rows, longs, ints(NUM_ROWS, 128))
    row_ops.decode_inputs(rows, rows, table, ints(64, 128), inputs, block_size=64)
    params = SamplingTensors(
        temperature=numbers, top_k=rows, top_p=numbers, min_p=numbers, seeds=longs,
        positions=longs, all_greedy=False, any_filter=True,
    )  # fmt: skip
    row_ops.sampling_inputs(rows, rows, params, dataclasses.replace(params))
    commits = (rows, rows, table, ints(8, NUM_ROWS), ints(1))
    row_ops.commit_sampled(longs, *commits)
    commit_largest(torch.empty(NUM_ROWS, 128256, dtype=DTYPE), *commits)
    embedding = torch.empty(64, 4096, dtype=DTYPE)
    embed_rows(rows, embedding, 1.0, RowNorm(embedding[0], 0.0, 1e-5))


def product_launches() -> None:
    square, gate = torch.empty(4096, 4096, dtype=DTYPE), torch.empty(28672, 4096, dtype=DTYPE)
    squares = torch.empty(MAX_TILES, MAX_SKINNY_TOKENS)
    for num_tokens in (16, 64):
        x = torch.empty(num_tokens, 4096, dtype=DTYPE)
        add = NormOutput(x, x[0], 0.0, x, squares)
        norm = NormInput(squares, 64, 1e-5)
        for weight, gated, before, after in ((square, False, None, add), (gate, True, norm, None)):
            skinny_linear(
                x, weight, None, gated=gated, norm=before, add=after, arrivals=ints(MAX_TILES),
                use_tma=True,
            )  # fmt: skip
    qkv, down = torch.empty(6144, 4096, dtype=DTYPE), torch.empty(4096, 14336, dtype=DTYPE)
    x, inner = torch.empty(16, 4096, dtype=DTYPE), torch.empty(16, 14336, dtype=DTYPE)
    add, norm = NormOutput(x, x[0], 0.0, x, squares), NormInput(squares, 64, 1e-5)
    for of, weight, bias, before, after in (
        (x, qkv, None, norm, None), (x, qkv, qkv[:, 0], None, None), (x, square, None, None, add),
        (inner, down, None, None, add),
    ):  # fmt: skip
        hopper_skinny_linear(
            of, weight, bias, norm=before, add=after, arrivals=ints(MAX_TILES), num_cores=132
        )
    x = torch.empty(1, 4096, dtype=DTYPE)
    single_row_linear(x, square, None, gated=False, norm=None, residual=x)
    single_row_linear(x, gate, None, gated=True, norm=RowNorm(x[0], 0.0, 1e-5), residual=None)


def step_launches() -> None:
    row_launches()
    k, slots = torch.empty(NUM_ROWS, 8, 128, dtype=DTYPE), torch.zeros(NUM_ROWS, dtype=torch.int64)
    cache = torch.empty(8, 8, 64, 128, dtype=DTYPE)
    kv_write(k, k, cache, cache, slots)
    product_launches()

"""What a captured decode step does besides its layers: inputs out of the request table, the plan of
attention, parameters of sampling, tokens back into the table."""

import dataclasses
from collections.abc import Iterator

import torch
from tests.bench.kernels.harness import Case, sets_beyond_cache
from tests.bench.kernels.sampling import NUM_TOKENS, make_params

from octavo_kernels.gpu.schedule import plan_decode, target_items
from octavo_kernels.row_ops import (
    DecodeInputs,
    commit_largest,
    commit_sampled,
    decode_inputs,
    sampling_inputs,
    write_words,
)

NUM_KV_HEADS, NUM_CORES = 8, 132
MAX_ROWS, MAX_LEN, BLOCK_SIZE = 1024, 8192, 64
NUM_COLUMNS = MAX_LEN // BLOCK_SIZE
POSITION = 4000
NUM_PATCH_WORDS = 4096
NUM_SETS = 16
"""Launches in a graph: their data are small and stay in the L2 cache, as they do in a step."""


def zeros(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="cuda")


def step_cases(batch: int, token_table: torch.Tensor, block_table: torch.Tensor) -> Iterator[Case]:
    rows = torch.randperm(MAX_ROWS, device="cuda")[:batch].int()
    positions = zeros(torch.int32, batch) + POSITION
    inputs = DecodeInputs(
        token_ids=zeros(torch.int32, batch),
        positions=zeros(torch.int64, batch),
        seq_lens=zeros(torch.int32, batch) + POSITION + 1,
        slots=zeros(torch.int64, batch),
        block_table=zeros(torch.int32, batch, NUM_COLUMNS),
    )
    num_columns = POSITION // BLOCK_SIZE + 1
    yield Case(
        f"decode_inputs B={batch} ctx={POSITION}",
        lambda i: decode_inputs(
            rows, positions, token_table, block_table, inputs, block_size=BLOCK_SIZE
        ),
        NUM_SETS,
        batch * (8 * num_columns + 40),
    )
    target = target_items(batch, NUM_KV_HEADS, NUM_CORES)
    yield Case(
        f"plan_decode B={batch} ctx={POSITION}",
        lambda i: plan_decode(
            inputs.seq_lens, num_kv_heads=NUM_KV_HEADS, window=None, target_items=target
        ),
        NUM_SETS,
        32 * (batch + target),
    )
    table, params = make_params(MAX_ROWS, 1.0, 50, 0.9), make_params(batch, 1.0, 50, 0.9)
    row_bytes = sum(
        value.element_size()
        for value in (getattr(table, field.name) for field in dataclasses.fields(table))
        if isinstance(value, torch.Tensor)
    )
    yield Case(
        f"sampling_inputs B={batch}",
        lambda i: sampling_inputs(rows, positions, table, params),
        NUM_SETS,
        2 * batch * row_bytes,
    )
    ids = zeros(torch.int64, batch)
    host_ids = torch.zeros(8, batch, dtype=torch.int32, pin_memory=True)
    host_slot = zeros(torch.int32, 1)
    yield Case(
        f"commit_sampled B={batch}",
        lambda i: commit_sampled(ids, rows, positions, token_table, host_ids, host_slot),
        NUM_SETS,
        batch * 24,
    )


def largest_case(batch: int, token_table: torch.Tensor) -> Case:
    """The greedy end of a step: from logits to the table and the host."""
    num_bytes = batch * NUM_TOKENS * 2
    sets = sets_beyond_cache(num_bytes)
    logits = torch.randn(sets, batch, NUM_TOKENS, device="cuda").bfloat16()
    rows = torch.randperm(MAX_ROWS, device="cuda")[:batch].int()
    positions = zeros(torch.int32, batch) + POSITION
    host_ids = torch.zeros(8, batch, dtype=torch.int32, pin_memory=True)
    host_slot = zeros(torch.int32, 1)

    def launch(i: int) -> object:
        return commit_largest(logits[i], rows, positions, token_table, host_ids, host_slot)

    return Case(f"commit_largest B={batch} N={NUM_TOKENS}", launch, sets, num_bytes)


def cases() -> Iterator[Case]:
    token_table = zeros(torch.int32, MAX_ROWS, MAX_LEN + 1)
    block_table = torch.randint(1, 20000, (MAX_ROWS, NUM_COLUMNS), dtype=torch.int32, device="cuda")
    for batch in (1, 32, 256):
        yield from step_cases(batch, token_table, block_table)
        yield largest_case(batch, token_table)
    words = token_table.view(-1)
    offsets = torch.randperm(len(words), device="cuda")[:NUM_PATCH_WORDS].int()
    values = zeros(torch.int32, NUM_PATCH_WORDS)
    yield Case(
        f"write_words N={NUM_PATCH_WORDS}",
        lambda i: write_words(words, offsets, values),
        NUM_SETS,
        12 * NUM_PATCH_WORDS,
    )

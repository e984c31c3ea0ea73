"""The ops on request rows: each kernel against its reference, padding included."""

import pytest
import torch

from octavo_kernels import SamplingTensors
from octavo_kernels.gpu import row_ops as gpu
from octavo_kernels.gpu import sampling
from octavo_kernels.reference import row_ops as reference
from octavo_kernels.row_ops import DecodeInputs

NUM_ROWS, MAX_LEN, BLOCK_SIZE = 9, 700, 16
COLUMNS = -(-MAX_LEN // BLOCK_SIZE)


def _decode_outputs(num_rows: int, device: torch.device) -> DecodeInputs:
    def make(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.full(shape, -7, dtype=dtype, device=device)

    return DecodeInputs(
        token_ids=make(torch.int32, num_rows),
        positions=make(torch.int64, num_rows),
        seq_lens=make(torch.int32, num_rows),
        slots=make(torch.int64, num_rows),
        block_table=make(torch.int32, num_rows, COLUMNS),
    )


def _ints(high: int, *shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(
        high, shape, generator=generator, dtype=torch.int32, device=generator.device
    )


@pytest.mark.parametrize("num_rows", [1, 2, 5, 9])
def test_decode_inputs_agree_with_the_reference(num_rows, device, generator):
    token_table = _ints(1000, NUM_ROWS, MAX_LEN + 1, generator=generator)
    block_table = _ints(5000, NUM_ROWS, COLUMNS, generator=generator)
    rows = torch.randperm(NUM_ROWS, generator=generator, device=device)[:num_rows].int()
    positions = _ints(MAX_LEN, num_rows, generator=generator)
    rows[num_rows // 2] = -1
    found, expected = (_decode_outputs(num_rows, device) for _ in range(2))
    gpu.decode_inputs(rows, positions, token_table, block_table, found, block_size=BLOCK_SIZE)
    reference.decode_inputs(
        rows, positions, token_table, block_table, expected, block_size=BLOCK_SIZE
    )
    for name in ("token_ids", "positions", "seq_lens", "slots", "block_table"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("position", [0, BLOCK_SIZE - 1, BLOCK_SIZE, MAX_LEN - 1])
def test_decode_inputs_at_the_edges_of_a_page(position, device, generator):
    token_table = _ints(1000, NUM_ROWS, MAX_LEN + 1, generator=generator)
    block_table = _ints(5000, NUM_ROWS, COLUMNS, generator=generator)
    rows = torch.tensor([3], dtype=torch.int32, device=device)
    positions = torch.tensor([position], dtype=torch.int32, device=device)
    found = _decode_outputs(1, device)
    gpu.decode_inputs(rows, positions, token_table, block_table, found, block_size=BLOCK_SIZE)
    page = int(block_table[3, position // BLOCK_SIZE])
    assert found.token_ids.tolist() == [int(token_table[3, position])]
    assert found.seq_lens.tolist() == [position + 1]
    assert found.slots.tolist() == [page * BLOCK_SIZE + position % BLOCK_SIZE]


def _params(num_rows: int, device: torch.device) -> SamplingTensors:
    def make(dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(num_rows, dtype=dtype, device=device)

    return SamplingTensors(
        temperature=make(torch.float32),
        top_k=make(torch.int32),
        top_p=make(torch.float32),
        min_p=make(torch.float32),
        seeds=make(torch.int64),
        positions=make(torch.int64),
        all_greedy=False,
        any_filter=True,
    )


def test_sampling_inputs_come_from_each_rows_own_place(device, generator):
    table = _params(NUM_ROWS, device)
    table.temperature.uniform_(0.1, 2.0, generator=generator)
    table.top_k.random_(0, 50, generator=generator)
    table.top_p.uniform_(0.1, 1.0, generator=generator)
    table.min_p.uniform_(0.0, 0.5, generator=generator)
    table.seeds.random_(-(2**62), 2**62, generator=generator)
    rows = torch.tensor([4, -1, 0, 8], dtype=torch.int32, device=device)
    positions = torch.tensor([10, 0, 699, 5], dtype=torch.int32, device=device)
    found = _params(4, device)
    names = ("temperature", "top_k", "top_p", "min_p", "seeds")
    for name in (*names, "positions"):
        getattr(found, name).fill_(77)  # what an earlier step has left
    gpu.sampling_inputs(rows, positions, table, found)
    real = torch.tensor([0, 2, 3], device=device)
    for name in names:
        source = getattr(table, name)[rows[real].long()]
        assert torch.equal(getattr(found, name)[real], source), name
    assert found.positions[real].tolist() == [11, 700, 6]
    padding = [getattr(found, name)[1].item() for name in names]
    assert padding == [0, 0, 1, 0, 0], "padding is greedy"


def test_commit_stores_tokens_in_the_table_and_on_the_host(device):
    token_table = torch.zeros(NUM_ROWS, MAX_LEN + 1, dtype=torch.int32, device=device)
    host_ids = torch.zeros(3, 8, dtype=torch.int32, device=device)
    ids = torch.tensor([11, 22, 33], device=device)
    rows = torch.tensor([2, -1, 7], dtype=torch.int32, device=device)
    positions = torch.tensor([0, 0, MAX_LEN - 1], dtype=torch.int32, device=device)
    slot = torch.tensor([1], dtype=torch.int32, device=device)
    gpu.commit_sampled(ids, rows, positions, token_table, host_ids, slot)
    assert token_table[2, 1] == 11
    assert token_table[7, MAX_LEN] == 33
    assert token_table.count_nonzero() == 2, "padding stores no token"
    assert host_ids[1, :3].tolist() == [11, 22, 33]
    assert host_ids[0].count_nonzero() == host_ids[2].count_nonzero() == 0


@pytest.mark.parametrize("num_words", [1, 5, 3000])
def test_write_words_touches_only_what_it_is_told(num_words, device, generator):
    words = _ints(100, 10_000, generator=generator)
    offsets = torch.randperm(10_000, generator=generator, device=device)[:num_words].int()
    values = _ints(1000, num_words, generator=generator) + 1000
    expected = words.clone()
    reference.write_words(expected, offsets, values)
    gpu.write_words(words, offsets, values)
    assert torch.equal(words, expected)


@pytest.mark.parametrize("num_rows", [3, 70])
def test_the_largest_is_committed_the_lowest_id_on_ties(num_rows, device, generator):
    """Rows of more tokens than a part has, and of each part's length for few and for many rows."""
    token_table = torch.zeros(num_rows, MAX_LEN + 1, dtype=torch.int32, device=device)
    host_ids = torch.zeros(3, num_rows, dtype=torch.int32, device=device)
    logits = torch.randn(num_rows, 9001, generator=generator, device=device).half()
    logits[0] = float("-inf")
    logits[1, 8999] = logits[1, 4000] = logits[1].max() + 1
    rows = torch.arange(num_rows, dtype=torch.int32, device=device)
    rows[2] = -1
    positions = torch.full((num_rows,), MAX_LEN - 1, dtype=torch.int32, device=device)
    slot = torch.tensor([1], dtype=torch.int32, device=device)
    sampling.commit_largest(logits, rows, positions, token_table, host_ids, slot)
    expected = logits.argmax(dim=-1).int()
    expected[0], expected[1] = 0, 4000
    assert torch.equal(host_ids[1], expected)
    assert host_ids[0].count_nonzero() == host_ids[2].count_nonzero() == 0
    expected[2] = 0  # padding stores no token
    assert torch.equal(token_table[:, MAX_LEN], expected)
    assert token_table[:, :MAX_LEN].count_nonzero() == 0

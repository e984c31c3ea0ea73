"""Which of a rank's mailboxes a message goes by, and what fits none of them."""

import pytest
import torch
from tests.kernels.mailbox_case import mailboxes, of_all_ranks

from octavo_engine.parallel.symmetric import Symmetric
from octavo_kernels.gpu.all_reduce import LookUp
from octavo_kernels.gpu.gather import PIECE_LEN, ROWS_A_PIECE

HALF = torch.float16
WIDTH, MAX_TOKENS, MAX_WORD_TOKENS = 64, 4, 2


@pytest.fixture
def ranks(device: torch.device) -> list[Symmetric]:
    boxes = (
        mailboxes(2, MAX_TOKENS, WIDTH, HALF, device),
        mailboxes(2, MAX_WORD_TOKENS, WIDTH // 2, torch.int64, device),
        mailboxes(2, 3, PIECE_LEN, HALF, device),
        mailboxes(2, 1, ROWS_A_PIECE, torch.int64, device),
    )
    return [
        Symmetric(sums=sums, word_sums=word_sums, rows=rows, words=words)
        for sums, word_sums, rows, words in zip(*boxes, strict=True)
    ]


@pytest.mark.parametrize(
    ("x", "is_by_words"),
    [
        (torch.ones(2, WIDTH, dtype=HALF), True),
        (torch.ones(3, WIDTH, dtype=HALF), False),
        (torch.ones(1, WIDTH + 1, dtype=HALF)[:, 1:], False),  # a pair may not begin there
    ],
    ids=["few", "many", "odd"],
)
def test_few_tokens_are_summed_by_words(
    x: torch.Tensor, is_by_words: bool, ranks: list[Symmetric], device: torch.device
) -> None:
    x = x.to(device)

    def exchange(rank: int, halves: dict[str, bool]) -> torch.Tensor:
        return ranks[rank].all_reduce(x, **halves)[1]

    for total in of_all_ranks(2, exchange):
        assert torch.equal(total, x + x)
    few = ranks[0].word_sums
    assert few is not None
    assert bool(few.counters.any()) == is_by_words
    assert bool(ranks[0].sums.counters.any()) != is_by_words


def test_a_few_rows_of_a_long_table_are_few(ranks: list[Symmetric], device: torch.device) -> None:
    table = torch.arange(20.0, device=device).to(HALF)[:, None].expand(20, WIDTH).contiguous()
    parts, ids = table.split(10), torch.tensor([3, 17], device=device)

    def exchange(rank: int, halves: dict[str, bool]) -> torch.Tensor:
        assert ranks[rank].can_sum(parts[rank], len(ids))
        return ranks[rank].all_reduce(parts[rank], None, LookUp(ids, 10 * rank), **halves)[1]

    for rows in of_all_ranks(2, exchange):
        assert torch.equal(rows, table[ids])
    assert not ranks[0].sums.counters.any()


def test_what_fits_no_mailbox_is_told_before(ranks: list[Symmetric], device: torch.device) -> None:
    one = ranks[0]

    def zeros(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    assert one.can_sum(zeros(MAX_TOKENS, WIDTH), MAX_TOKENS)
    assert not one.can_sum(zeros(MAX_TOKENS + 1, WIDTH), MAX_TOKENS + 1)
    assert not one.can_sum(zeros(1, WIDTH + 2), 1)
    assert not one.can_sum(zeros(1, WIDTH, dtype=torch.float32), 1)
    assert not one.can_sum(zeros(WIDTH, 2).T[:, :WIDTH], 2)
    assert one.can_gather(zeros(3, PIECE_LEN))
    assert not one.can_gather(zeros(2, PIECE_LEN + 1))
    assert not one.can_gather(zeros(1, 8, dtype=torch.float32))
    assert one.can_exchange(ROWS_A_PIECE)
    assert not one.can_exchange(ROWS_A_PIECE + 1)
    assert one.can_overwrite(zeros(3, dtype=torch.int64))
    assert not one.can_overwrite(zeros(3, dtype=torch.int32))
    assert not one.can_overwrite(zeros(6, dtype=torch.int64)[::2])

"""Rows side by side, the first of the largest, rank 0's numbers: with all ranks on one device."""

from collections.abc import Callable

import pytest
import torch
from tests.kernels.mailbox_case import mailboxes, of_all_ranks

from octavo_kernels.gpu.gather import (
    PIECE_LEN,
    ROWS_A_PIECE,
    all_gather,
    first_of_ranks,
    largest,
    num_gather_pieces,
    num_word_pieces,
)
from octavo_kernels.gpu.mailbox import Mailbox

MAX_ROWS = 40


@pytest.fixture
def draw(device: torch.device, generator: torch.Generator) -> Callable[..., torch.Tensor]:
    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    return make


def words(num_ranks: int, device: torch.device) -> list[Mailbox]:
    return mailboxes(num_ranks, num_word_pieces(MAX_ROWS), ROWS_A_PIECE, torch.int64, device)


def largest_of_all(parts: list[torch.Tensor], boxes: list[Mailbox]) -> list[torch.Tensor]:
    return of_all_ranks(
        len(boxes), lambda rank, halves: largest(parts[rank], boxes[rank], **halves)
    )


@pytest.mark.parametrize(("num_ranks", "length"), [(2, PIECE_LEN + 8), (3, 50)])
def test_rows_of_all_ranks_stand_side_by_side_in_their_order(
    num_ranks: int, length: int, dtype: torch.dtype, device: torch.device,
    draw: Callable[..., torch.Tensor],
) -> None:  # fmt: skip
    boxes = mailboxes(num_ranks, num_gather_pieces(5, length), PIECE_LEN, dtype, device)
    for num_rows in (5, 1):
        parts = [draw(num_rows, length).to(dtype) for _ in range(num_ranks)]
        for found in of_all_ranks(
            num_ranks,
            lambda rank, halves, parts=parts: all_gather(parts[rank], boxes[rank], **halves),
        ):
            assert torch.equal(found, torch.cat(parts, dim=1))


@pytest.mark.parametrize("num_rows", [1, 33])
def test_the_largest_is_found_on_whatever_rank_it_is(
    num_rows: int, dtype: torch.dtype, device: torch.device, draw: Callable[..., torch.Tensor]
) -> None:
    boxes = words(2, device)
    for _ in range(2):
        parts = [draw(num_rows, 2100).to(dtype) for _ in range(2)]
        whole = torch.cat(parts, dim=1).float()
        for found in largest_of_all(parts, boxes):
            assert found.dtype == torch.int64
            # Two may be equally large in 16 bits.
            assert torch.equal(whole.gather(1, found[:, None])[:, 0], whole.max(1).values)


def test_the_first_of_equals_wins_zeros_have_no_sign_and_no_number_is_id_0(
    device: torch.device,
) -> None:
    whole = torch.full((6, 200), -7.0, device=device)
    whole[0, [150, 99, 30]] = 2.0  # on both ranks, twice on the first
    whole[1, [199, 100]] = 0.0
    whole[2, 40], whole[2, 120] = -0.0, 0.0
    whole[3] = -torch.inf
    whole[4, 100] = torch.inf
    whole[5, 3:] = torch.nan
    boxes = words(2, device)
    for found in largest_of_all(list(whole.split(100, dim=1)), boxes):
        assert found.tolist() == [30, 100, 40, 0, 100, 0]


@pytest.mark.parametrize("num_rows", [1, 16, 33])
def test_all_ranks_take_the_numbers_of_rank_0(num_rows: int, device: torch.device) -> None:
    boxes = words(3, device)
    for turn in range(2):
        given = [
            torch.arange(num_rows, device=device) + 2**40 * rank + 1000 * turn for rank in range(3)
        ]
        expected = given[0].clone()
        of_all_ranks(
            3, lambda rank, halves, given=given: first_of_ranks(given[rank], boxes[rank], **halves)
        )
        for numbers in given:
            assert torch.equal(numbers, expected)


def test_what_does_not_fit_the_mailbox_is_refused(device: torch.device) -> None:
    box = words(2, device)[0]
    with pytest.raises(ValueError, match=r"has 48 rows of one torch.int64, asked for 49"):
        largest(torch.zeros(49, 10, device=device), box)
    with pytest.raises(ValueError, match=r"asked for 2 of torch.int32"):
        first_of_ranks(torch.zeros(2, dtype=torch.int32, device=device), box)
    gathered = mailboxes(2, 2, PIECE_LEN, torch.float32, device)[0]
    with pytest.raises(ValueError, match=r"up to 2 pieces of torch.float32, got 4"):
        all_gather(torch.zeros(2, PIECE_LEN + 1, device=device), gathered)

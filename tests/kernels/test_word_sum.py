"""Sums whose numbers travel with the number of their exchange: with all ranks on one device."""

from collections.abc import Callable

import pytest
import torch
from tests.kernels.conftest import ON_GPU
from tests.kernels.mailbox_case import mailboxes, of_all_ranks

from octavo_kernels.gpu.all_reduce import Following, LookUp
from octavo_kernels.gpu.mailbox import Mailbox
from octavo_kernels.gpu.word_sum import word_all_reduce
from octavo_kernels.reference.all_reduce import all_reduce_add_rms_norm, sum_of_parts
from octavo_kernels.reference.rms_norm import rms_norm

EPS, OFFSET = 1e-5, 1.0
MAX_TOKENS = 5


@pytest.fixture(params=[torch.float16] + ([torch.bfloat16] if ON_GPU else []), ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen


@pytest.fixture
def draw(device: torch.device, generator: torch.Generator) -> Callable[..., torch.Tensor]:
    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    return make


def words(num_ranks: int, width: int, device: torch.device) -> list[Mailbox]:
    return mailboxes(num_ranks, MAX_TOKENS, width // 2, torch.int64, device)


@pytest.mark.parametrize(("num_ranks", "width"), [(2, 64), (4, 100)])
def test_many_sums_of_changing_size_are_those_of_the_reference(
    num_ranks: int, width: int, dtype: torch.dtype, device: torch.device,
    draw: Callable[..., torch.Tensor], assert_close: Callable[..., None],
) -> None:  # fmt: skip
    boxes = words(num_ranks, width, device)
    for num_tokens in (5, 1, 3):
        parts = [draw(num_tokens, width).to(dtype) for _ in range(num_ranks)]
        # A residual may be a part of something wider.
        residual, weight = draw(num_tokens, 2 * width).to(dtype)[:, :width], draw(width).to(dtype)
        following = Following(residual, weight, EPS, OFFSET)
        results = of_all_ranks(
            num_ranks,
            lambda rank, halves, parts=parts, following=following: word_all_reduce(
                parts[rank], boxes[rank], following, **halves
            ),
        )
        exact = all_reduce_add_rms_norm(
            [part.float() for part in parts], residual.float(), weight.float(), EPS, OFFSET
        )
        for normed, total in results:
            assert_close(total, exact[1], dtype)
            seen = rms_norm(total.float(), weight.float(), EPS, weight_offset=OFFSET)
            assert_close(normed, seen, dtype)  # the norm sees the rounded total
            assert torch.equal(total, results[0][1]), "ranks must not drift apart"
            assert torch.equal(normed, results[0][0])


def test_a_row_of_a_table_comes_from_the_rank_that_has_it(
    dtype: torch.dtype, device: torch.device, draw: Callable[..., torch.Tensor]
) -> None:
    boxes = words(3, 100, device)
    table = draw(12, 100).to(dtype)
    ids = torch.tensor([11, 0, 4, 7, 4], device=device)
    parts = table.split(4)
    for _, rows in of_all_ranks(
        3,
        lambda rank, halves: word_all_reduce(
            parts[rank], boxes[rank], look_up=LookUp(ids, 4 * rank), **halves
        ),
    ):
        assert torch.equal(rows, table[ids])


def test_one_rank_ahead_of_the_other_and_numbers_that_wrap_around(
    device: torch.device, draw: Callable[..., torch.Tensor]
) -> None:
    """Rank 0 sends its next row while rank 1 has not read the last."""
    if ON_GPU:
        pytest.skip("the halves go one after the other under the interpreter alone")
    boxes = words(2, 64, device)
    for box in boxes:
        box.counters.fill_(2**31 - 2)
    for _ in range(2):
        first, second = ([draw(2, 64).half(), draw(2, 64).half()] for _ in range(2))
        for rank in (0, 1):
            word_all_reduce(first[rank], boxes[rank], receives=False)
        word_all_reduce(first[0], boxes[0], sends=False)
        word_all_reduce(second[0], boxes[0], receives=False)
        found = word_all_reduce(first[1], boxes[1], sends=False)[1]
        assert torch.equal(found, sum_of_parts(first).half())
        word_all_reduce(second[1], boxes[1], receives=False)
        for rank in (0, 1):
            found = word_all_reduce(second[rank], boxes[rank], sends=False)[1]
            assert torch.equal(found, sum_of_parts(second).half())
    assert boxes[0].counters[0] < 0


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.zeros(6, 64, dtype=torch.float16), r"up to 5 rows of 64 16-bit numbers, got 6"),
        (torch.zeros(1, 64), r"got 1 of \(1, 64\) torch.float32"),
        (torch.zeros(1, 65, dtype=torch.float16)[:, 1:], r"strides \(65, 1\)"),
    ],
)
def test_what_does_not_fit_is_refused(x: torch.Tensor, said: str, device: torch.device) -> None:
    box = words(2, 64, device)[0]
    with pytest.raises(ValueError, match=said):
        word_all_reduce(x.to(device), box)

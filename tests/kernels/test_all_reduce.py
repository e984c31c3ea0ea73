"""The sum over ranks, with all ranks on one device: halves in turn on a CPU, streams on a GPU."""

from collections.abc import Callable

import pytest
import torch
from tests.kernels.conftest import ON_GPU
from tests.kernels.mailbox_case import mailboxes, of_all_ranks

from octavo_kernels.gpu.all_reduce import Following, LookUp, all_reduce
from octavo_kernels.gpu.mailbox import Mailbox
from octavo_kernels.reference.all_reduce import all_reduce_add_rms_norm, sum_of_parts
from octavo_kernels.reference.rms_norm import rms_norm

EPS, OFFSET = 1e-5, 1.0
MAX_TOKENS = 5
Result = list[tuple[torch.Tensor, torch.Tensor]]


def reduce_all(
    parts: list[torch.Tensor],
    boxes: list[Mailbox],
    following: Following | None,
    look_ups: list[LookUp] | None = None,
) -> Result:
    """What each rank gets."""

    def exchange(rank: int, halves: dict[str, bool]) -> tuple[torch.Tensor, torch.Tensor]:
        look_up = None if look_ups is None else look_ups[rank]
        return all_reduce(parts[rank], boxes[rank], following, look_up, **halves)

    return of_all_ranks(len(boxes), exchange)


@pytest.fixture
def draw(device: torch.device, generator: torch.Generator) -> Callable[..., torch.Tensor]:
    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    return make


@pytest.mark.parametrize(("num_ranks", "width"), [(2, 64), (4, 100)])
def test_many_sums_of_changing_size_are_those_of_the_reference(
    num_ranks: int, width: int, dtype: torch.dtype, device: torch.device,
    draw: Callable[..., torch.Tensor], assert_close: Callable[..., None],
) -> None:  # fmt: skip
    boxes = mailboxes(num_ranks, MAX_TOKENS, width, dtype, device)
    for num_tokens in (5, 1, 3):
        parts = [draw(num_tokens, width).to(dtype) for _ in range(num_ranks)]
        residual, weight = draw(num_tokens, width).to(dtype), draw(width).to(dtype)
        results = reduce_all(parts, boxes, Following(residual, weight, EPS, OFFSET))
        exact = all_reduce_add_rms_norm(
            [part.float() for part in parts], residual.float(), weight.float(), EPS, OFFSET
        )
        for normed, total in results:
            assert_close(total, exact[1], dtype)
            seen = rms_norm(total.float(), weight.float(), EPS, weight_offset=OFFSET)
            assert_close(normed, seen, dtype)  # the norm sees the rounded total
            assert torch.equal(total, results[0][1]), "ranks must not drift apart"
            assert torch.equal(normed, results[0][0])


@pytest.mark.parametrize("has_norm", [True, False])
def test_a_row_of_a_table_comes_from_the_rank_that_has_it(
    has_norm: bool, dtype: torch.dtype, device: torch.device,
    draw: Callable[..., torch.Tensor], assert_close: Callable[..., None],
) -> None:  # fmt: skip
    boxes = mailboxes(3, MAX_TOKENS, 100, dtype, device)
    table, weight = draw(12, 100).to(dtype), draw(100).to(dtype)
    ids = torch.tensor([11, 0, 4, 7, 4], device=device)
    look_ups = [LookUp(ids, first) for first in (0, 4, 8)]
    following = Following(None, weight, EPS, OFFSET) if has_norm else None
    for normed, rows in reduce_all(list(table.split(4)), boxes, following, look_ups):
        assert torch.equal(rows, table[ids])
        if has_norm:
            exact = rms_norm(table[ids].float(), weight.float(), EPS, weight_offset=OFFSET)
            assert_close(normed, exact, dtype, 2.0)


def test_a_plain_sum_and_one_rank_ahead_of_the_other(
    device: torch.device, draw: Callable[..., torch.Tensor]
) -> None:
    """Rank 0 sends its next row while rank 1 has not read the last."""
    if ON_GPU:
        pytest.skip("the halves go one after the other under the interpreter alone")
    boxes = mailboxes(2, MAX_TOKENS, 64, torch.float32, device)
    first, second = ([draw(2, 64), draw(2, 64)] for _ in range(2))
    for rank in (0, 1):
        all_reduce(first[rank], boxes[rank], receives=False)
    all_reduce(first[0], boxes[0], sends=False)
    all_reduce(second[0], boxes[0], receives=False)
    torch.testing.assert_close(
        all_reduce(first[1], boxes[1], sends=False)[1], sum_of_parts(first), rtol=0, atol=0
    )
    all_reduce(second[1], boxes[1], receives=False)
    for rank in (0, 1):
        found = all_reduce(second[rank], boxes[rank], sends=False)[1]
        torch.testing.assert_close(found, sum_of_parts(second), rtol=0, atol=0)


def test_numbers_of_sums_wrap_around(
    device: torch.device, draw: Callable[..., torch.Tensor]
) -> None:
    boxes = mailboxes(2, MAX_TOKENS, 64, torch.float32, device)
    for box in boxes:
        box.counters.fill_(2**31 - 2)
        box.flags.fill_(2**31 - 2)
    for _ in range(4):
        parts = [draw(2, 64), draw(2, 64)]
        for _, total in reduce_all(parts, boxes, None):
            torch.testing.assert_close(total, sum_of_parts(parts), rtol=0, atol=0)
    assert boxes[0].counters[0] < 0


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs an NVIDIA GPU")
def test_graphs_of_an_odd_number_of_sums_replay_in_any_order(
    device: torch.device, draw: Callable[..., torch.Tensor]
) -> None:
    boxes = mailboxes(2, MAX_TOKENS, 64, torch.bfloat16, device)
    inputs = [draw(4, 64).bfloat16() for _ in range(2)]

    def three(rank: int) -> torch.Tensor:
        x = inputs[rank]
        for _ in range(3):
            x = all_reduce(x, boxes[rank])[1]
        return x

    streams = [torch.cuda.Stream() for _ in range(2)]
    for rank, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            three(rank)
    torch.cuda.synchronize()
    graphs, outputs = [], []
    for rank, stream in enumerate(streams):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outputs.append(three(rank))
        graphs.append(graph)
    expected = (inputs[0].float() + inputs[1].float()).bfloat16() * 4
    for _ in range(4):
        for output in outputs:
            output.fill_(torch.nan)
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        for output in outputs:
            assert torch.equal(output, expected)


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [
        ((6, 64), torch.float32, r"up to 5 rows of 64 numbers"),
        ((1, 32), torch.float32, r"up to 5 rows of 64 numbers"),
        ((1, 64), torch.float16, r"x is torch.float16, the inbox torch.float32"),
    ],
)
def test_what_does_not_fit_the_inbox_is_refused(
    shape: tuple[int, int], dtype: torch.dtype, said: str, device: torch.device
) -> None:
    box = mailboxes(2, MAX_TOKENS, 64, torch.float32, device)[0]
    with pytest.raises(ValueError, match=said):
        all_reduce(torch.zeros(shape, dtype=dtype, device=device), box)

"""Several ranks on one device: their halves in turn on a CPU, side by side on a GPU's streams."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from tests.kernels.conftest import ON_GPU

from octavo_kernels.gpu.mailbox import Mailbox, make_mailboxes

T = TypeVar("T")


def mailboxes(
    num_ranks: int, max_pieces: int, width: int, dtype: torch.dtype, device: torch.device
) -> list[Mailbox]:
    shape = (2, num_ranks, max_pieces, width)
    # A piece that is read before it was written shows.
    poison: Any = torch.nan if dtype.is_floating_point else -(2**30)
    inboxes = [torch.full(shape, poison, dtype=dtype, device=device) for _ in range(num_ranks)]
    flags = [
        torch.zeros(num_ranks, max_pieces, dtype=torch.int32, device=device)
        for _ in range(num_ranks)
    ]
    return make_mailboxes(inboxes, flags)


def of_all_ranks(num_ranks: int, exchange: Callable[[int, dict[str, bool]], T]) -> list[T]:
    """What each rank gets. exchange: called with a rank and arguments for the exchange's launch."""
    if not ON_GPU:
        for rank in range(num_ranks):
            exchange(rank, {"receives": False})
        return [exchange(rank, {"sends": False}) for rank in range(num_ranks)]
    results = []
    for rank in range(num_ranks):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results.append(exchange(rank, {}))
    torch.cuda.synchronize()
    return results

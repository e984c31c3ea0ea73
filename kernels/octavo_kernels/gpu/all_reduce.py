"""Sum over the GPUs of one host for few tokens, in one launch with the residual and norm behind it.

Each program has a row: it sends it to all other ranks and adds up theirs, in the order of ranks, so
that all ranks get the same bits (see `mailbox`). The row may be one of a table of which each rank
has some: the sum is then the row of the rank that has it.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import wait_for_previous
from octavo_kernels.gpu.mailbox import Mailbox, begin, exchange_arguments, exchange_options, receive


@triton.jit
def own_row(x, token_ids, row, first_id, num_own, x_stride, WIDTH: tl.constexpr,
            BLOCK: tl.constexpr, LOOKS_UP: tl.constexpr):  # fmt: skip
    """The rank's part of a row of the sum: row of x[T, WIDTH], or, of the row that token_ids[T]
    name in a table, what x[num_own, WIDTH] has of it: zeros where another rank has it."""
    column = tl.arange(0, BLOCK)
    if LOOKS_UP:
        own_id = tl.load(token_ids + row).to(tl.int64) - first_id
        num_columns = tl.where((own_id >= 0) & (own_id < num_own), WIDTH, 0)
        own = tl.load(x + own_id * x_stride + column, mask=column < num_columns, other=0)
    else:
        own = tl.load(x + row * x_stride + column, mask=column < WIDTH, other=0)
    return own


@triton.jit(do_not_specialize=["rank", "max_pieces", "first_id", "num_own"])
def _all_reduce_kernel(
    x,
    token_ids,
    residual,
    weight,
    y,
    total_out,
    inbox,
    flags,
    counters,
    inbox_addresses,
    flag_addresses,
    rank,
    max_pieces,
    first_id,
    num_own,
    x_stride,
    residual_stride,
    eps,
    weight_offset,
    RANKS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    LOOKS_UP: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_NORM: tl.constexpr,
    SENDS: tl.constexpr,
    RECEIVES: tl.constexpr,
    MAX_POLLS: tl.constexpr,
    CAN_TRAP: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    if HAS_NORM:
        scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + weight_offset
    wait_for_previous(OVERLAP)
    own = own_row(x, token_ids, row, first_id, num_own, x_stride, WIDTH, BLOCK, LOOKS_UP)
    number = begin(
        own, counters, inbox_addresses, flag_addresses, rank, row, max_pieces,
        RANKS, WIDTH, BLOCK, SENDS,
    )  # fmt: skip
    if RECEIVES:
        total = tl.zeros((BLOCK,), tl.float32)
        for sender in tl.static_range(RANKS):
            part = own
            if rank != sender:
                part = receive(
                    inbox, flags, sender, row, number, max_pieces,
                    RANKS, WIDTH, BLOCK, MAX_POLLS, CAN_TRAP,
                )  # fmt: skip
            total += part.to(tl.float32)
        if HAS_RESIDUAL:
            added = tl.load(residual + row * residual_stride + column, mask=inside, other=0.0)
            total += added.to(tl.float32)
        narrow: tl.constexpr = x.dtype.element_ty
        # Rounded first: the norm must see what the next layer's residual will be.
        rounded = total.to(narrow)
        tl.store(total_out + row * WIDTH + column, rounded, mask=inside)
        if HAS_NORM:
            wide = rounded.to(tl.float32)
            inverse_rms = tl.rsqrt(tl.sum(wide * wide) / WIDTH + eps)
            tl.store(y + row * WIDTH + column, (wide * inverse_rms * scale).to(narrow), mask=inside)
        tl.store(counters + row, number)


@dataclass(frozen=True)
class Following:
    """What is done with the sum: a residual is added and the total normalised, as by `rms_norm`."""

    residual: torch.Tensor | None
    """[T, H] of x's dtype, last stride 1."""
    weight: torch.Tensor
    """[H] of x's dtype."""
    eps: float
    weight_offset: float


@dataclass(frozen=True)
class LookUp:
    """What is summed are rows of a table of which each rank has some neighbours."""

    token_ids: torch.Tensor
    """[T], of any integers: the rows of the whole table."""
    first_id: int
    """Of the rank's own."""


def all_reduce(
    x: torch.Tensor,
    mailbox: Mailbox,
    following: Following | None = None,
    look_up: LookUp | None = None,
    *,
    sends: bool = True,
    receives: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x[T, H], T <= max_pieces, last stride 1 -> (norm of the total, total), both [T, H]; without
    `following` both are the sum over ranks.

    look_up: x[N, H] is the rank's part of the table, and T the number of ids.
    sends, receives: both halves at once need all ranks to run at the same time. One after the other
    is for tests on one device.
    """
    num_tokens = len(x) if look_up is None else len(look_up.token_ids)
    _refuse_unfit(x, num_tokens, mailbox)
    width = mailbox.width
    residual = None if following is None else following.residual
    total = torch.empty(num_tokens, width, dtype=x.dtype, device=x.device)
    y = total if following is None else torch.empty_like(total)
    if not num_tokens:
        return y, total
    block = triton.next_power_of_2(width)
    _all_reduce_kernel[(num_tokens,)](
        x,
        x if look_up is None else look_up.token_ids,
        x if residual is None else residual,
        x if following is None else following.weight,
        y,
        total,
        *exchange_arguments(mailbox),
        0 if look_up is None else look_up.first_id,
        len(x),
        x.stride(0),
        x.stride(0) if residual is None else residual.stride(0),
        0.0 if following is None else following.eps,
        0.0 if following is None else following.weight_offset,
        WIDTH=width,
        BLOCK=block,
        LOOKS_UP=look_up is not None,
        HAS_RESIDUAL=residual is not None,
        HAS_NORM=following is not None,
        num_warps=min(16, max(4, block // 512)),
        **exchange_options(mailbox, sends, receives),
    )
    return y, total


def _refuse_unfit(x: torch.Tensor, num_tokens: int, mailbox: Mailbox) -> None:
    if num_tokens > mailbox.max_pieces or x.shape[1] != mailbox.width or x.stride(1) != 1:
        raise ValueError(
            f"all_reduce takes up to {mailbox.max_pieces} rows of {mailbox.width} "
            f"numbers side by side, got {num_tokens} of {tuple(x.shape)} with strides {x.stride()}"
        )
    if x.dtype != mailbox.inbox.dtype:
        raise ValueError(f"x is {x.dtype}, the inbox {mailbox.inbox.dtype}")

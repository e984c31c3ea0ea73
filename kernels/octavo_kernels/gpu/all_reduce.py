"""Sum over the GPUs of one host for few tokens, in one launch with the residual and norm behind it.

Each program has a row. It stores the row into the inbox of every other rank and then raises a flag
there; it waits for the others' flags and adds up what lies in its own inbox, in the order of ranks,
so that all ranks get the same bits. Inboxes are memory that all GPUs map (`SymmetricAllReduce`).

A row's counter in device memory numbers its sums: flags hold that number and never go back, and
odd and even sums use different halves of the inbox. A rank can be one sum ahead of another, not
two: for the second it needs a flag that the other raises when it has read the first. So launches
need no barrier, and may stand in graphs of any size, replayed and mixed with others in any order,
as long as all ranks make the same launches.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import overlap_options, wait_for_previous

MAX_POLLS = 2**28
"""Some minutes; a rank that is silent for so long is dead, and whoever waits fails too."""


@dataclass(frozen=True)
class Mailbox:
    """Where one rank sends to and receives from. Rows of all parts are contiguous."""

    rank: int
    max_tokens: int
    inbox: torch.Tensor
    """[2, ranks, max_tokens, H]: written by the others, by parity of the sum and sender."""
    flags: torch.Tensor
    """[ranks, max_tokens] int32: number of the last sum that each sender has delivered."""
    counters: torch.Tensor
    """[max_tokens] int32: number of the last sum of each row."""
    inbox_addresses: torch.Tensor
    """[ranks] int64: of the inboxes of all ranks, as this rank maps them."""
    flag_addresses: torch.Tensor
    """[ranks] int64."""

    @property
    def num_ranks(self) -> int:
        return self.inbox.shape[1]


@triton.jit
def _send(
    own,
    inbox_addresses,
    flag_addresses,
    rank,
    row,
    number,
    max_tokens,
    RANKS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    sender = ((number & 1) * RANKS + rank).to(tl.int64)
    place = (sender * max_tokens + row) * WIDTH + column
    for peer in tl.static_range(RANKS):
        address = tl.load(inbox_addresses + peer)
        # Without the hint numbers would be stored one by one.
        target = tl.multiple_of(address.to(tl.pointer_type(own.dtype)), 16) + place
        if rank != peer:
            tl.store(target, own, mask=inside)
    # All threads have stored before the flag says so.
    tl.debug_barrier()
    for peer in tl.static_range(RANKS):
        address = tl.load(flag_addresses + peer)
        flag = address.to(tl.pointer_type(tl.int32)) + rank * max_tokens + row
        if rank != peer:
            tl.atomic_xchg(flag, number, sem="release", scope="sys")


@triton.jit
def _wait(flag, number, MAX_POLLS: tl.constexpr, CAN_TRAP: tl.constexpr):
    """Until the flag has reached the number; numbers wrap around."""
    polls = 0
    seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
    while (seen - number < 0) & (polls < MAX_POLLS):
        seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
        polls += 1
    if CAN_TRAP and polls >= MAX_POLLS:
        tl.inline_asm_elementwise(
            "trap; mov.u32 $0, $1;", "=r,r", [polls], tl.int32, is_pure=False, pack=1
        )
    # Every thread reads the inbox only behind the one that has seen the flag.
    tl.debug_barrier()


@triton.jit(do_not_specialize=["rank", "max_tokens"])
def _all_reduce_kernel(
    x,
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
    max_tokens,
    x_stride,
    residual_stride,
    eps,
    weight_offset,
    RANKS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
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
    own = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    number = tl.load(counters + row) + 1
    if SENDS:
        _send(
            own, inbox_addresses, flag_addresses, rank, row, number, max_tokens,
            RANKS, WIDTH, BLOCK,
        )  # fmt: skip
    if RECEIVES:
        total = tl.zeros((BLOCK,), tl.float32)
        for sender in tl.static_range(RANKS):
            part = own
            if rank != sender:
                _wait(flags + sender * max_tokens + row, number, MAX_POLLS, CAN_TRAP)
                place = ((number & 1) * RANKS + sender).to(tl.int64) * max_tokens + row
                received = inbox + place * WIDTH + column
                part = tl.load(received, mask=inside, other=0.0, cache_modifier=".cg")
            total += part.to(tl.float32)
        if HAS_NORM:
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

    residual: torch.Tensor
    """[T, H]."""
    weight: torch.Tensor
    """[H]."""
    eps: float
    weight_offset: float


def all_reduce(
    x: torch.Tensor,
    mailbox: Mailbox,
    following: Following | None = None,
    *,
    sends: bool = True,
    receives: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x[T, H], T <= max_tokens, last stride 1 -> (norm of the total, total), both [T, H]; without
    `following` both are the sum over ranks.

    sends, receives: both halves at once need all ranks to run at the same time. One after the other
    is for tests on one device.
    """
    num_tokens, width = x.shape
    if num_tokens > mailbox.max_tokens or width != mailbox.inbox.shape[-1] or x.stride(1) != 1:
        raise ValueError(
            f"all_reduce takes up to {mailbox.max_tokens} rows of {mailbox.inbox.shape[-1]} "
            f"numbers side by side, got {tuple(x.shape)} with strides {x.stride()}"
        )
    if x.dtype != mailbox.inbox.dtype:
        raise ValueError(f"x is {x.dtype}, the inbox {mailbox.inbox.dtype}")
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y = total if following is None else torch.empty_like(total)
    if not num_tokens:
        return y, total
    block = triton.next_power_of_2(width)
    _all_reduce_kernel[(num_tokens,)](
        x,
        x if following is None else following.residual,
        x if following is None else following.weight,
        y,
        total,
        mailbox.inbox,
        mailbox.flags,
        mailbox.counters,
        mailbox.inbox_addresses,
        mailbox.flag_addresses,
        mailbox.rank,
        mailbox.max_tokens,
        x.stride(0),
        x.stride(0) if following is None else following.residual.stride(0),
        0.0 if following is None else following.eps,
        0.0 if following is None else following.weight_offset,
        RANKS=mailbox.num_ranks,
        WIDTH=width,
        BLOCK=block,
        HAS_NORM=following is not None,
        SENDS=sends,
        RECEIVES=receives,
        MAX_POLLS=MAX_POLLS,
        CAN_TRAP=x.device.type == "cuda",
        num_warps=min(16, max(4, block // 512)),
        **overlap_options(x.device),
    )
    return y, total


def make_mailboxes(
    inboxes: list[torch.Tensor], flags: list[torch.Tensor], max_tokens: int
) -> list[Mailbox]:
    """One for each of several ranks in this process, for tests on one device."""
    return [
        _mailbox(
            rank,
            max_tokens,
            inboxes[rank],
            flags[rank],
            [inbox.data_ptr() for inbox in inboxes],
            [flag.data_ptr() for flag in flags],
        )
        for rank in range(len(inboxes))
    ]


def _mailbox(
    rank: int,
    max_tokens: int,
    inbox: torch.Tensor,
    flags: torch.Tensor,
    inbox_addresses: list[int],
    flag_addresses: list[int],
) -> Mailbox:
    device = inbox.device
    return Mailbox(
        rank=rank,
        max_tokens=max_tokens,
        inbox=inbox,
        flags=flags,
        counters=torch.zeros(max_tokens, dtype=torch.int32, device=device),
        inbox_addresses=torch.tensor(inbox_addresses, dtype=torch.int64, device=device),
        flag_addresses=torch.tensor(flag_addresses, dtype=torch.int64, device=device),
    )


class SymmetricAllReduce:
    """The sums of one rank of a host, over torch's symmetric memory; no multicast is used."""

    def __init__(
        self,
        group_name: str,
        rank: int,
        size: int,
        *,
        max_tokens: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """group_name: of a c10d group whose ranks all call this in the same order. Raises
        RuntimeError where their GPUs cannot map each other's memory."""
        self.max_tokens = max_tokens
        inbox, mapped_inbox = _shared((2, size, max_tokens, hidden_size), dtype, device, group_name)
        flags, mapped_flags = _shared((size, max_tokens), torch.int32, device, group_name)
        self._mapped = (mapped_inbox, mapped_flags)
        self._mailbox = _mailbox(
            rank,
            max_tokens,
            inbox,
            flags,
            list(mapped_inbox.buffer_ptrs),
            list(mapped_flags.buffer_ptrs),
        )
        # Nobody may raise a flag before its owner has cleared it.
        mapped_flags.barrier()
        torch.cuda.synchronize(device)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """x[T, H] -> [T, H]: the sum over ranks, the same bits on each."""
        return all_reduce(x, self._mailbox)[1]

    def add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        weight_offset: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of the total, total) of the sum over ranks plus the residual."""
        return all_reduce(x, self._mailbox, Following(residual, weight, eps, weight_offset))


def _shared(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, group_name: str
) -> tuple[torch.Tensor, Any]:
    """Zeros that every rank of the group maps, and torch's handle to everybody's."""
    from torch.distributed import _symmetric_memory

    tensor = _symmetric_memory.empty(shape, dtype=dtype, device=device)
    tensor.zero_()
    torch.cuda.synchronize(device)
    return tensor, _symmetric_memory.rendezvous(tensor, group_name)  # type: ignore[arg-type]  # a name of torch's own type, which older ones lack

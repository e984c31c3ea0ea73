"""Memory that the GPUs of a host map from each other, and how their kernels pass rows through it.

A program has a piece of what is exchanged. It stores it into the inbox of every other rank and then
raises a flag there; it waits for the others' flags and reads what lies in its own inbox.

A piece's counter in device memory numbers its exchanges: flags hold that number and never go back,
and odd and even exchanges use different halves of the inbox. A rank can be one exchange ahead of
another, not two: for the second it needs a flag that the other raises when it has read the first.
So launches need no barrier, and may stand in graphs of any size, replayed and mixed with others in
any order, as long as all ranks make the same launches.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import overlap_options

MAX_POLLS = 2**28
"""Some minutes; a rank that is silent for so long is dead, and whoever waits fails too."""
INTERPRETED_POLLS = 1
"""Under the interpreter the halves of an exchange run in turn: what is not there never comes."""


@dataclass(frozen=True)
class Mailbox:
    """Where one rank sends to and receives from. Pieces are contiguous."""

    rank: int
    inbox: torch.Tensor
    """[2, ranks, max_pieces, width]: written by the others, by parity of the exchange, sender."""
    flags: torch.Tensor
    """[ranks, max_pieces] int32: number of the last exchange that each sender has delivered."""
    counters: torch.Tensor
    """[max_pieces] int32: number of the last exchange of each piece."""
    inbox_addresses: torch.Tensor
    """[ranks] int64: of the inboxes of all ranks, as this rank maps them."""
    flag_addresses: torch.Tensor
    """[ranks] int64."""
    mapped: tuple[Any, ...] = ()
    """What keeps the others' memory mapped."""

    @property
    def num_ranks(self) -> int:
        return self.inbox.shape[1]

    @property
    def max_pieces(self) -> int:
        return self.inbox.shape[2]

    @property
    def width(self) -> int:
        return self.inbox.shape[3]


@triton.jit
def begin(
    own, counters, inbox_addresses, flag_addresses, rank, piece, max_pieces,
    RANKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SENDS: tl.constexpr,
):  # fmt: skip
    """The number of the piece's next exchange, for which own is sent."""
    number = tl.load(counters + piece) + 1
    if SENDS:
        send(
            own, inbox_addresses, flag_addresses, rank, piece, number, max_pieces,
            RANKS, WIDTH, BLOCK,
        )  # fmt: skip
    return number


@triton.jit
def send(
    own,
    inbox_addresses,
    flag_addresses,
    rank,
    piece,
    number,
    max_pieces,
    RANKS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """own[BLOCK], of which WIDTH count, as the piece's exchange of this number."""
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    sender = ((number & 1) * RANKS + rank).to(tl.int64)
    place = (sender * max_pieces + piece) * WIDTH + column
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
        flag = address.to(tl.pointer_type(tl.int32)) + rank * max_pieces + piece
        if rank != peer:
            tl.atomic_xchg(flag, number, sem="release", scope="sys")


@triton.jit
def receive(
    inbox,
    flags,
    sender,
    piece,
    number,
    max_pieces,
    RANKS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    MAX_POLLS: tl.constexpr,
    CAN_TRAP: tl.constexpr,
):
    """What the sender has sent, once it has."""
    _wait(flags + sender * max_pieces + piece, number, MAX_POLLS, CAN_TRAP)
    column = tl.arange(0, BLOCK)
    place = ((number & 1) * RANKS + sender).to(tl.int64) * max_pieces + piece
    return tl.load(
        inbox + place * WIDTH + column, mask=column < WIDTH, other=0, cache_modifier=".cg"
    )


@triton.jit
def _wait(flag, number, MAX_POLLS: tl.constexpr, CAN_TRAP: tl.constexpr):
    """Until the flag has reached the number; numbers wrap around."""
    polls = 0
    seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
    while (seen - number < 0) & (polls < MAX_POLLS):
        seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
        polls += 1
    end_if_silent(polls, MAX_POLLS, CAN_TRAP)
    # Every thread reads the inbox only behind the one that has seen the flag.
    tl.debug_barrier()


@triton.jit
def end_if_silent(polls, MAX_POLLS: tl.constexpr, CAN_TRAP: tl.constexpr):
    """Ends the process, as an error of the GPU, when a rank has been waited for in vain."""
    if CAN_TRAP and polls >= MAX_POLLS:
        tl.inline_asm_elementwise(
            "trap; mov.u32 $0, $1;", "=r,r", [polls], tl.int32, is_pure=False, pack=1
        )


def exchange_arguments(mailbox: Mailbox) -> tuple[torch.Tensor | int, ...]:
    """Of a kernel, in this order: inbox, flags, counters, inbox_addresses, flag_addresses, rank,
    max_pieces."""
    return (
        mailbox.inbox, mailbox.flags, mailbox.counters, mailbox.inbox_addresses,
        mailbox.flag_addresses, mailbox.rank, mailbox.max_pieces,
    )  # fmt: skip


def exchange_options(mailbox: Mailbox, sends: bool, receives: bool) -> dict[str, Any]:
    """Constants of a kernel that exchanges, and options of its launch."""
    device = mailbox.inbox.device
    return {
        "RANKS": mailbox.num_ranks,
        "SENDS": sends,
        "RECEIVES": receives,
        "MAX_POLLS": MAX_POLLS if device.type == "cuda" else INTERPRETED_POLLS,
        "CAN_TRAP": device.type == "cuda",
        **overlap_options(device),
    }


def make_mailboxes(inboxes: list[torch.Tensor], flags: list[torch.Tensor]) -> list[Mailbox]:
    """One for each of several ranks in this process, for tests on one device."""
    return [
        _mailbox(
            rank,
            inboxes[rank],
            flags[rank],
            [inbox.data_ptr() for inbox in inboxes],
            [flag.data_ptr() for flag in flags],
        )
        for rank in range(len(inboxes))
    ]


def open_mailbox(
    group_name: str,
    rank: int,
    size: int,
    *,
    max_pieces: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Mailbox:
    """Over torch's symmetric memory; no multicast is used.

    group_name: of a c10d group whose ranks all call this in the same order. Raises RuntimeError
    where their GPUs cannot map each other's memory.
    """
    inbox, mapped_inbox = _shared((2, size, max_pieces, width), dtype, device, group_name)
    flags, mapped_flags = _shared((size, max_pieces), torch.int32, device, group_name)
    mailbox = _mailbox(
        rank,
        inbox,
        flags,
        list(mapped_inbox.buffer_ptrs),
        list(mapped_flags.buffer_ptrs),
        (mapped_inbox, mapped_flags),
    )
    # Nobody may raise a flag before its owner has cleared it.
    mapped_flags.barrier()
    torch.cuda.synchronize(device)
    return mailbox


def _mailbox(
    rank: int,
    inbox: torch.Tensor,
    flags: torch.Tensor,
    inbox_addresses: list[int],
    flag_addresses: list[int],
    mapped: tuple[Any, ...] = (),
) -> Mailbox:
    device = inbox.device
    return Mailbox(
        rank=rank,
        inbox=inbox,
        flags=flags,
        counters=torch.zeros(inbox.shape[2], dtype=torch.int32, device=device),
        inbox_addresses=torch.tensor(inbox_addresses, dtype=torch.int64, device=device),
        flag_addresses=torch.tensor(flag_addresses, dtype=torch.int64, device=device),
        mapped=mapped,
    )


def _shared(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, group_name: str
) -> tuple[torch.Tensor, Any]:
    """Zeros that every rank of the group maps, and torch's handle to everybody's."""
    from torch.distributed import _symmetric_memory

    tensor = _symmetric_memory.empty(shape, dtype=dtype, device=device)
    tensor.zero_()
    torch.cuda.synchronize(device)
    return tensor, _symmetric_memory.rendezvous(tensor, group_name)  # type: ignore[arg-type]  # a name of torch's own type, which older ones lack

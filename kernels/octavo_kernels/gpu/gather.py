"""What the GPUs of one host tell each other beside sums, each in one launch (see `mailbox`).

all_gather      rows of all ranks side by side
largest         the first of the largest number of such rows, without bringing them together
first_of_ranks  the numbers of rank 0
"""

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import overlap_options, wait_for_previous
from octavo_kernels.gpu.mailbox import Mailbox, begin, exchange_arguments, exchange_options, receive
from octavo_kernels.gpu.sampling_passes import NO_TOKEN, draw, ordered_bits

PIECE_LEN = 4096
"""Numbers of a row in a program that gathers."""
ROWS_A_PIECE = 16
"""Rows in a program that exchanges one word a row."""
PART_LEN = 2048
"""Numbers of a row among which a program looks for the largest."""
MANY_ROWS = 32
"""From here on programs are enough, and parts LONG_PARTS times as long."""
LONG_PARTS = 4


@triton.jit(do_not_specialize=["rank", "max_pieces"])
def _all_gather_kernel(
    x, out, inbox, flags, counters, inbox_addresses, flag_addresses, rank, max_pieces, x_stride,
    LEN: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr,
    SENDS: tl.constexpr, RECEIVES: tl.constexpr, MAX_POLLS: tl.constexpr, CAN_TRAP: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    pieces_a_row: tl.constexpr = (LEN + BLOCK - 1) // BLOCK
    piece = tl.program_id(0)
    row = (piece // pieces_a_row).to(tl.int64)
    column = piece % pieces_a_row * BLOCK + tl.arange(0, BLOCK)
    wait_for_previous(OVERLAP)
    own = tl.load(x + row * x_stride + column, mask=column < LEN, other=0.0)
    number = begin(
        own, counters, inbox_addresses, flag_addresses, rank, piece, max_pieces,
        RANKS, BLOCK, BLOCK, SENDS,
    )  # fmt: skip
    if RECEIVES:
        for sender in tl.static_range(RANKS):
            part = own
            if rank != sender:
                part = receive(
                    inbox, flags, sender, piece, number, max_pieces,
                    RANKS, BLOCK, BLOCK, MAX_POLLS, CAN_TRAP,
                )  # fmt: skip
            tl.store(out + (row * RANKS + sender) * LEN + column, part, mask=column < LEN)
        tl.store(counters + piece, number)


@triton.jit
def _part_kernel(
    x, part_ids, part_best, x_stride,
    LEN: tl.constexpr, NUM_PARTS: tl.constexpr, PART_LEN: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """The first of the largest of one part of a row."""
    program = tl.program_id(0)
    row = (program // NUM_PARTS).to(tl.int64)
    begin = program % NUM_PARTS * PART_LEN
    end = tl.minimum(begin + PART_LEN, LEN)
    wait_for_previous(OVERLAP)
    nothing = float("-inf")
    no_key = tl.full((), 0, tl.uint32)
    winner, _, best = draw(
        x + row * x_stride, begin, end, 1.0, nothing, nothing, no_key, no_key, False, BLOCK
    )
    tl.store(part_ids + program, winner)
    tl.store(part_best + program, best)


@triton.jit(do_not_specialize=["rank", "max_pieces"])
def _largest_kernel(
    part_ids, part_best, ids, inbox, flags, counters, inbox_addresses, flag_addresses,
    rank, max_pieces, num_rows,
    LEN: tl.constexpr, NUM_PARTS: tl.constexpr, RANKS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
    SENDS: tl.constexpr, RECEIVES: tl.constexpr, MAX_POLLS: tl.constexpr, CAN_TRAP: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """A word is a number's bits above and, below, what is larger for a lower id."""
    piece = tl.program_id(0)
    row = piece * ROWS + tl.arange(0, ROWS)
    part = tl.arange(0, BLOCK)
    wait_for_previous(OVERLAP)
    at = row.to(tl.int64)[:, None] * NUM_PARTS + part[None, :]
    inside = (row < num_rows)[:, None] & (part < NUM_PARTS)[None, :]
    best = tl.load(part_best + at, mask=inside, other=float("-inf"))
    part_id = tl.load(part_ids + at, mask=inside, other=NO_TOKEN)
    # Minus zero is no smaller than zero, but its bits are.
    high = ordered_bits(tl.where(best == 0.0, 0.0, best)).to(tl.int64)
    low = tl.where(part_id == NO_TOKEN, 0, NO_TOKEN - (part_id + rank * LEN)).to(tl.int64)
    word = tl.max((high << 32) | low, 1)
    number = begin(
        word, counters, inbox_addresses, flag_addresses, rank, piece, max_pieces,
        RANKS, ROWS, ROWS, SENDS,
    )  # fmt: skip
    if RECEIVES:
        for sender in tl.static_range(RANKS):
            if rank != sender:
                received = receive(
                    inbox, flags, sender, piece, number, max_pieces,
                    RANKS, ROWS, ROWS, MAX_POLLS, CAN_TRAP,
                )  # fmt: skip
                word = tl.maximum(word, received)
        low = word & 0xFFFFFFFF
        tl.store(ids + row, tl.where(low == 0, 0, NO_TOKEN - low), mask=row < num_rows)
        tl.store(counters + piece, number)


@triton.jit(do_not_specialize=["rank", "max_pieces"])
def _first_kernel(
    x, inbox, flags, counters, inbox_addresses, flag_addresses, rank, max_pieces, num_rows,
    RANKS: tl.constexpr, ROWS: tl.constexpr, SENDS: tl.constexpr, RECEIVES: tl.constexpr,
    MAX_POLLS: tl.constexpr, CAN_TRAP: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """All ranks send, so that rank 0 knows that the others are no further behind than one."""
    piece = tl.program_id(0)
    row = piece * ROWS + tl.arange(0, ROWS)
    wait_for_previous(OVERLAP)
    own = tl.load(x + row, mask=row < num_rows, other=0)
    number = begin(
        own, counters, inbox_addresses, flag_addresses, rank, piece, max_pieces,
        RANKS, ROWS, ROWS, SENDS,
    )  # fmt: skip
    if RECEIVES:
        for sender in tl.static_range(RANKS):
            if rank != sender:
                received = receive(
                    inbox, flags, sender, piece, number, max_pieces,
                    RANKS, ROWS, ROWS, MAX_POLLS, CAN_TRAP,
                )  # fmt: skip
                if sender == 0:
                    tl.store(x + row, received, mask=row < num_rows)
        tl.store(counters + piece, number)


def num_gather_pieces(num_rows: int, length: int) -> int:
    """Of a mailbox with pieces of PIECE_LEN."""
    return num_rows * -(-length // PIECE_LEN)


def num_word_pieces(num_rows: int) -> int:
    """Of a mailbox with pieces of ROWS_A_PIECE int64."""
    return -(-num_rows // ROWS_A_PIECE)


def all_gather(
    x: torch.Tensor, mailbox: Mailbox, *, sends: bool = True, receives: bool = True
) -> torch.Tensor:
    """x[R, n] of each rank, last stride 1 -> [R, ranks * n], in the order of ranks.

    mailbox: has num_gather_pieces(R, n) pieces of PIECE_LEN or more. sends, receives: as of
    `all_reduce`.
    """
    num_rows, length = x.shape
    num_pieces = num_gather_pieces(num_rows, length)
    if num_pieces > mailbox.max_pieces or x.stride(1) != 1 or x.dtype != mailbox.inbox.dtype:
        raise ValueError(
            f"all_gather takes up to {mailbox.max_pieces} pieces of {mailbox.inbox.dtype}, "
            f"got {num_pieces} of {x.dtype}, strides {x.stride()}"
        )
    out = torch.empty(num_rows, mailbox.num_ranks * length, dtype=x.dtype, device=x.device)
    if num_pieces:
        _all_gather_kernel[(num_pieces,)](
            x, out, *exchange_arguments(mailbox), x.stride(0),
            LEN=length,
            BLOCK=PIECE_LEN,
            num_warps=8,
            **exchange_options(mailbox, sends, receives),
        )  # fmt: skip
    return out


def largest(
    x: torch.Tensor, mailbox: Mailbox, *, sends: bool = True, receives: bool = True
) -> torch.Tensor:
    """x[R, n] of each rank, last stride 1 -> [R] int64: where the first of the largest numbers of
    a row stands, were all ranks' parts of it side by side; 0 where a row has no number.

    mailbox: has num_word_pieces(R) pieces of ROWS_A_PIECE int64 or more.
    """
    num_rows, length = x.shape
    _refuse_words(num_rows, torch.int64, mailbox)
    part_len = PART_LEN if num_rows < MANY_ROWS else LONG_PARTS * PART_LEN
    num_parts = triton.cdiv(length, part_len)
    ids = torch.empty(num_rows, dtype=torch.int64, device=x.device)
    part_ids = torch.empty(num_rows, num_parts, dtype=torch.int32, device=x.device)
    part_best = torch.empty(num_rows, num_parts, dtype=torch.float32, device=x.device)
    if not num_rows:
        return ids
    _part_kernel[(num_rows * num_parts,)](
        x, part_ids, part_best, x.stride(0),
        LEN=length,
        NUM_PARTS=num_parts,
        PART_LEN=part_len,
        BLOCK=PART_LEN,
        **overlap_options(x.device),
    )  # fmt: skip
    _largest_kernel[(num_word_pieces(num_rows),)](
        part_ids, part_best, ids, *exchange_arguments(mailbox), num_rows,
        LEN=length,
        NUM_PARTS=num_parts,
        BLOCK=triton.next_power_of_2(num_parts),
        ROWS=ROWS_A_PIECE,
        num_warps=4,
        **exchange_options(mailbox, sends, receives),
    )  # fmt: skip
    return ids


def first_of_ranks(
    x: torch.Tensor, mailbox: Mailbox, *, sends: bool = True, receives: bool = True
) -> None:
    """Overwrites x[R] int64 with that of rank 0. mailbox: as of `largest`."""
    _refuse_words(len(x), x.dtype, mailbox)
    if len(x):
        _first_kernel[(num_word_pieces(len(x)),)](
            x, *exchange_arguments(mailbox), len(x),
            ROWS=ROWS_A_PIECE,
            num_warps=1,
            **exchange_options(mailbox, sends, receives),
        )  # fmt: skip


def _refuse_words(num_rows: int, dtype: torch.dtype, mailbox: Mailbox) -> None:
    if num_word_pieces(num_rows) > mailbox.max_pieces or dtype != mailbox.inbox.dtype:
        raise ValueError(
            f"the mailbox has {mailbox.max_pieces * ROWS_A_PIECE} rows of one "
            f"{mailbox.inbox.dtype}, asked for {num_rows} of {dtype}"
        )

"""`all_reduce` for so few tokens that the way to the other rank and back is what takes time.

Two 16-bit numbers travel in a word of 64 bits with the number of their exchange beside them: a word
is written at once, so whoever reads the right number there has the data too. That saves what a flag
costs, a way there and back, for twice the bytes. All else is as in `mailbox`, whose flags stay
unused: a rank sends exchange n + 1 when the launch that has read exchange n has ended.
"""

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.all_reduce import Following, LookUp, own_row
from octavo_kernels.gpu.launch import wait_for_previous
from octavo_kernels.gpu.mailbox import Mailbox, end_if_silent, exchange_options

NUM_WARPS = 16


@triton.jit
def _low(pairs, IS_BFLOAT: tl.constexpr):
    """The first number of each pair in float32."""
    if IS_BFLOAT:
        number = (pairs << 16).to(tl.float32, bitcast=True)
    else:
        number = pairs.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return number


@triton.jit
def _high(pairs, IS_BFLOAT: tl.constexpr):
    if IS_BFLOAT:
        number = (pairs & -65536).to(tl.float32, bitcast=True)
    else:
        number = (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return number


@triton.jit
def _pair(low, high, IS_BFLOAT: tl.constexpr):
    narrow: tl.constexpr = tl.bfloat16 if IS_BFLOAT else tl.float16
    first = low.to(narrow).to(tl.int16, bitcast=True).to(tl.int32) & 65535
    second = high.to(narrow).to(tl.int16, bitcast=True).to(tl.int32) << 16
    return first | second


@triton.jit
def _send(
    own, inbox_addresses, rank, piece, number, max_pieces,
    RANKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    sender = ((number & 1) * RANKS + rank).to(tl.int64)
    place = (sender * max_pieces + piece) * WIDTH + column
    words = (own.to(tl.int64) & 0xFFFFFFFF) | (number.to(tl.int64) << 32)
    for peer in tl.static_range(RANKS):
        address = tl.load(inbox_addresses + peer)
        target = tl.multiple_of(address.to(tl.pointer_type(tl.int64)), 16) + place
        if rank != peer:
            tl.store(target, words, mask=column < WIDTH)


@triton.jit
def _receive(
    inbox, sender, piece, number, max_pieces,
    RANKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    MAX_POLLS: tl.constexpr, CAN_TRAP: tl.constexpr,
):  # fmt: skip
    """The pairs that the sender has sent, once all have come."""
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = (((number & 1) * RANKS + sender).to(tl.int64) * max_pieces + piece) * WIDTH + column
    nothing = number.to(tl.int64) << 32
    words = tl.load(inbox + place, mask=inside, other=nothing, volatile=True)
    num_late = tl.sum(((words >> 32).to(tl.int32) != number).to(tl.int32), 0)
    polls = 0
    while (num_late > 0) & (polls < MAX_POLLS):
        words = tl.load(inbox + place, mask=inside, other=nothing, volatile=True)
        num_late = tl.sum(((words >> 32).to(tl.int32) != number).to(tl.int32), 0)
        polls += 1
    end_if_silent(polls, MAX_POLLS, CAN_TRAP)
    return words.to(tl.int32)


@triton.jit(do_not_specialize=["rank", "max_pieces", "first_id", "num_own"])
def _word_sum_kernel(
    x, token_ids, residual, weight, y, total_out, inbox, counters, inbox_addresses,
    rank, max_pieces, first_id, num_own, x_stride, residual_stride, eps, weight_offset,
    RANKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, IS_BFLOAT: tl.constexpr,
    LOOKS_UP: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_NORM: tl.constexpr,
    SENDS: tl.constexpr, RECEIVES: tl.constexpr, MAX_POLLS: tl.constexpr, CAN_TRAP: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """All rows are of pairs: WIDTH of them, two numbers each."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    if HAS_NORM:
        gamma = tl.load(weight + column, mask=inside, other=0)
    wait_for_previous(OVERLAP)
    number = tl.load(counters + row) + 1
    own = own_row(x, token_ids, row, first_id, num_own, x_stride, WIDTH, BLOCK, LOOKS_UP)
    if SENDS:
        _send(own, inbox_addresses, rank, row, number, max_pieces, RANKS, WIDTH, BLOCK)
    if RECEIVES:
        added = tl.zeros((BLOCK,), tl.int32)
        if HAS_RESIDUAL:
            # Asked for before the wait for the others, added behind them.
            added = tl.load(residual + row * residual_stride + column, mask=inside, other=0)
        low = tl.zeros((BLOCK,), tl.float32)
        high = tl.zeros((BLOCK,), tl.float32)
        for sender in tl.static_range(RANKS):
            part = own
            if rank != sender:
                part = _receive(
                    inbox, sender, row, number, max_pieces,
                    RANKS, WIDTH, BLOCK, MAX_POLLS, CAN_TRAP,
                )  # fmt: skip
            low += _low(part, IS_BFLOAT)
            high += _high(part, IS_BFLOAT)
        if HAS_RESIDUAL:
            low += _low(added, IS_BFLOAT)
            high += _high(added, IS_BFLOAT)
        rounded = _pair(low, high, IS_BFLOAT)
        tl.store(total_out + row * WIDTH + column, rounded, mask=inside)
        if HAS_NORM:
            low, high = _low(rounded, IS_BFLOAT), _high(rounded, IS_BFLOAT)
            mean = tl.sum(low * low + high * high, 0) / (2 * WIDTH)
            inverse_rms = tl.rsqrt(mean + eps)
            low = low * inverse_rms * (_low(gamma, IS_BFLOAT) + weight_offset)
            high = high * inverse_rms * (_high(gamma, IS_BFLOAT) + weight_offset)
            tl.store(y + row * WIDTH + column, _pair(low, high, IS_BFLOAT), mask=inside)
        tl.store(counters + row, number)


def can_pair(x: torch.Tensor | None) -> bool:
    """Whether rows of x, if given, are pairs of 16-bit numbers, each where a pair may begin."""
    if x is None:
        return True
    sizes = (x.storage_offset(), x.shape[-1], *x.stride()[:-1])
    return x.dtype.itemsize == 2 and x.stride(-1) == 1 and all(size % 2 == 0 for size in sizes)


def word_all_reduce(
    x: torch.Tensor,
    mailbox: Mailbox,
    following: Following | None = None,
    look_up: LookUp | None = None,
    *,
    sends: bool = True,
    receives: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `all_reduce`, for 16-bit numbers that `can_pair`; mailbox: of H / 2 int64."""
    num_tokens = len(x) if look_up is None else len(look_up.token_ids)
    is_fit = num_tokens <= mailbox.max_pieces and x.shape[1] == 2 * mailbox.width
    if not is_fit or not can_pair(x) or mailbox.inbox.dtype != torch.int64:
        raise ValueError(
            f"word_all_reduce takes up to {mailbox.max_pieces} rows of {2 * mailbox.width} 16-bit "
            f"numbers, got {num_tokens} of {tuple(x.shape)} {x.dtype}, strides {x.stride()}"
        )
    residual = None if following is None else following.residual
    total = torch.empty(num_tokens, x.shape[1], dtype=x.dtype, device=x.device)
    y = total if following is None else torch.empty_like(total)
    if not num_tokens:
        return y, total
    pairs = x.view(torch.int32)
    residual_pairs = pairs if residual is None else residual.view(torch.int32)
    _word_sum_kernel[(num_tokens,)](
        pairs,
        pairs if look_up is None else look_up.token_ids,
        residual_pairs,
        pairs if following is None else following.weight.view(torch.int32),
        y.view(torch.int32),
        total.view(torch.int32),
        mailbox.inbox,
        mailbox.counters,
        mailbox.inbox_addresses,
        mailbox.rank,
        mailbox.max_pieces,
        0 if look_up is None else look_up.first_id,
        len(x),
        pairs.stride(0),
        residual_pairs.stride(0),
        0.0 if following is None else following.eps,
        0.0 if following is None else following.weight_offset,
        WIDTH=mailbox.width,
        BLOCK=triton.next_power_of_2(mailbox.width),
        IS_BFLOAT=x.dtype == torch.bfloat16,
        LOOKS_UP=look_up is not None,
        HAS_RESIDUAL=residual is not None,
        HAS_NORM=following is not None,
        num_warps=NUM_WARPS,
        **exchange_options(mailbox, sends, receives),
    )
    return y, total

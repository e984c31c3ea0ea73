"""What rows change in their logits, within the first pass of `sampling` over them.

A program changes its own part of a row in place: first single ids, then, in one pass over the part,
the bits of a mask and the penalties of what the row has seen. How often it has seen each id of a
block is counted anew from the row's history, so that no table of counts is kept.
"""

import struct
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from octavo_kernels.logit_changes import ANY_TOKEN, LogitChanges

# int64 numbers of a row in the table that the kernel reads. Addresses, 0 where there is nothing:
HISTORY = tl.constexpr(0)
ALLOWED = tl.constexpr(1)
FORBIDDEN = tl.constexpr(2)
PREFIXES = tl.constexpr(3)
LAST_IDS = tl.constexpr(4)
BIAS_IDS = tl.constexpr(5)
BIASES = tl.constexpr(6)
# Lengths:
NUM_TOKENS = tl.constexpr(7)
NUM_PROMPT_TOKENS = tl.constexpr(8)
NUM_FORBIDDEN = tl.constexpr(9)
NUM_ENDINGS = tl.constexpr(10)
PREFIX_LEN = tl.constexpr(11)
NUM_BIASES = tl.constexpr(12)
# Bits of float32 numbers:
REPETITION = tl.constexpr(13)
PRESENCE = tl.constexpr(14)
FREQUENCY = tl.constexpr(15)
NUM_FIELDS = tl.constexpr(16)

ANY = tl.constexpr(ANY_TOKEN)
ITEMS = tl.constexpr(128)
"""Single ids that a program takes at once."""
HISTORY_BLOCK = tl.constexpr(1024)
"""Tokens of the history that a program counts at once."""


@triton.jit
def _pointer(fields, field: tl.constexpr, of: tl.constexpr):
    return tl.load(fields + field).to(tl.pointer_type(of))


@triton.jit
def _number(fields, field: tl.constexpr):
    return tl.load(fields + field).to(tl.int32)


@triton.jit
def _float(fields, field: tl.constexpr):
    return tl.load(fields + field).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _forbid(
    logits, begin, end, last_ids, num_ids, prefixes, prefix_len, history, first, num_tokens
):
    """last_ids[num_ids] may not follow their prefixes[num_ids, prefix_len]; the output stands in
    history[first:num_tokens]."""
    for start in range(0, num_ids, ITEMS):
        item = start + tl.arange(0, ITEMS)
        matches = item < num_ids
        for place in range(0, prefix_len):
            wanted = tl.load(prefixes + item * prefix_len + place, mask=item < num_ids, other=ANY)
            at = num_tokens - prefix_len + place
            # Another negative number: no id, and not any.
            found = tl.load(history + at, mask=at >= first, other=ANY - 1)
            matches = matches & ((wanted == ANY) | (wanted == found))
        token = tl.load(last_ids + item, mask=matches, other=-1)
        inside = (token >= begin) & (token < end)
        tl.store(logits + token, float("-inf"), mask=inside)


@triton.jit
def _add_biases(logits, begin, end, ids, biases, num_biases):
    for start in range(0, num_biases, ITEMS):
        item = start + tl.arange(0, ITEMS)
        token = tl.load(ids + item, mask=item < num_biases, other=-1)
        inside = (token >= begin) & (token < end)
        value = tl.load(logits + token, mask=inside, other=0.0)
        bias = tl.load(biases + item, mask=inside, other=0.0)
        tl.store(logits + token, value + bias, mask=inside)


@triton.jit
def _counts(history, begin, end, first_id, BLOCK: tl.constexpr):
    """How often each id from first_id on stands in history[begin:end]: [BLOCK] int32."""
    counts = tl.zeros((BLOCK,), tl.int32)
    for start in range(begin, end, HISTORY_BLOCK):
        at = start + tl.arange(0, HISTORY_BLOCK)
        place = tl.load(history + at, mask=at < end, other=-1) - first_id
        inside = (at < end) & (place >= 0) & (place < BLOCK)
        counts += tl.histogram(place, BLOCK, mask=inside)
    return counts


@triton.jit
def _penalised(value, fields, first_id, BLOCK: tl.constexpr):
    """A block's values after the penalties."""
    history = _pointer(fields, HISTORY, tl.int32)
    num_prompt, num_tokens = _number(fields, NUM_PROMPT_TOKENS), _number(fields, NUM_TOKENS)
    repetition = _float(fields, REPETITION)
    in_output = _counts(history, num_prompt, num_tokens, first_id, BLOCK)
    if repetition != 1.0:
        seen = (in_output + _counts(history, 0, num_prompt, first_id, BLOCK)) > 0
        weakened = tl.where(value > 0, value / repetition, value * repetition)
        value = tl.where(seen, weakened, value)
    value -= _float(fields, FREQUENCY) * in_output.to(tl.float32)
    return value - tl.where(in_output > 0, _float(fields, PRESENCE), 0.0)


@triton.jit
def change_part(logits, fields, begin, end, BLOCK: tl.constexpr):
    """Changes logits[begin:end] of a row as its fields say; all threads of the program see it."""
    history = _pointer(fields, HISTORY, tl.int32)
    first, num_tokens = _number(fields, NUM_PROMPT_TOKENS), _number(fields, NUM_TOKENS)
    forbidden = _pointer(fields, FORBIDDEN, tl.int32)
    _forbid(logits, begin, end, forbidden, _number(fields, NUM_FORBIDDEN), forbidden, 0, history,
            first, num_tokens)  # fmt: skip
    _forbid(logits, begin, end, _pointer(fields, LAST_IDS, tl.int32), _number(fields, NUM_ENDINGS),
            _pointer(fields, PREFIXES, tl.int32), _number(fields, PREFIX_LEN), history, first,
            num_tokens)  # fmt: skip
    tl.debug_barrier()
    _add_biases(logits, begin, end, _pointer(fields, BIAS_IDS, tl.int32),
                _pointer(fields, BIASES, tl.float32), _number(fields, NUM_BIASES))  # fmt: skip
    tl.debug_barrier()
    is_masked = tl.load(fields + ALLOWED) != 0
    penalises = (_float(fields, REPETITION) != 1.0) | (_float(fields, PRESENCE) != 0.0)
    penalises = penalises | (_float(fields, FREQUENCY) != 0.0)
    if is_masked | penalises:
        allowed = _pointer(fields, ALLOWED, tl.int32)
        for start in range(begin, end, BLOCK):
            idx = start + tl.arange(0, BLOCK)
            inside = idx < end
            value = tl.load(logits + idx, mask=inside, other=0.0)
            if penalises:
                value = _penalised(value, fields, start, BLOCK)
            if is_masked:
                word = tl.load(allowed + idx // 32, mask=inside, other=0)
                value = tl.where(((word >> (idx % 32)) & 1) == 0, float("-inf"), value)
            tl.store(logits + idx, value, mask=inside)
        tl.debug_barrier()


def changes_table(changes: Sequence[LogitChanges | None], device: torch.device) -> torch.Tensor:
    """[R, NUM_FIELDS] int64 on the device. It holds addresses of what the rows change: that must
    live until the kernel has been launched, on the stream that it was made on."""
    rows = [_unchanged() if wanted is None else _fields(wanted) for wanted in changes]
    return torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)


def _unchanged() -> list[int]:
    fields = [0] * NUM_FIELDS.value
    fields[REPETITION.value] = _bits(1.0)
    return fields


def _fields(changes: LogitChanges) -> list[int]:
    endings = changes.endings
    prefixes = None if endings is None else endings.prefixes
    last_ids = None if endings is None else endings.last_ids
    tensors = (changes.history, changes.allowed, changes.forbidden_ids, prefixes, last_ids,
               changes.bias_ids, changes.biases)  # fmt: skip
    return [
        *(0 if tensor is None else tensor.data_ptr() for tensor in tensors),
        len(changes.history),
        changes.num_prompt_tokens,
        0 if changes.forbidden_ids is None else len(changes.forbidden_ids),
        0 if last_ids is None else len(last_ids),
        0 if prefixes is None else prefixes.shape[1],
        0 if changes.bias_ids is None else len(changes.bias_ids),
        _bits(changes.repetition_penalty),
        _bits(changes.presence_penalty),
        _bits(changes.frequency_penalty),
    ]


def _bits(number: float) -> int:
    """Of the number as a float32."""
    (bits,) = struct.unpack("<i", struct.pack("<f", number))
    return int(bits)

"""Gumbel noise as a hash of (seed, position, token id): the same 32 bits as `reference.noise`."""

import triton
import triton.language as tl

from octavo_kernels.reference import noise as reference

SEED_KEY = tl.constexpr(reference.SEED_KEY)
POSITION_KEY = tl.constexpr(reference.POSITION_KEY)
SECOND_KEY = tl.constexpr(reference.SECOND_KEY)
MIX_1 = tl.constexpr(reference.MIX_1)
MIX_2 = tl.constexpr(reference.MIX_2)
SMALL_U = tl.constexpr(reference.SMALL_U)
LARGEST_U = tl.constexpr(reference.LARGEST_U)
COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def mix(word):
    """uint32 -> uint32, a bijection."""
    word ^= word >> 16
    word *= MIX_1
    word ^= word >> 15
    word *= MIX_2
    return word ^ (word >> 16)


@triton.jit
def row_keys(seed, position):
    """Two uint32 keys of a row from its int64 seed and position."""
    seed_low = seed.to(tl.uint32)
    position_low = position.to(tl.uint32)
    key = seed_low ^ SEED_KEY
    key = mix(key) + (seed >> 32).to(tl.uint32)
    key = mix(key) + position_low
    key = mix(key) + (position >> 32).to(tl.uint32)
    key_1 = mix(key + POSITION_KEY)
    key_2 = mix(key_1 ^ SECOND_KEY)
    return key_1, mix(key_2 + seed_low + mix(position_low ^ SEED_KEY))


@triton.jit
def hash_u32(key_1, key_2, token_id):
    return mix(mix(token_id.to(tl.uint32) ^ key_1) + key_2)


@triton.jit
def _log2(x):
    """Of normal x > 0, within 2**-22 absolutely around 1 and relatively elsewhere."""
    if COMPILED:
        # One instruction of the special function unit; tl.log2 is 25 others.
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.log2(x)


@triton.jit
def gumbel(key_1, key_2, token_id):
    """Standard Gumbel noise in float32, between -2.9 and 23."""
    word = hash_u32(key_1, key_2, token_id)
    unit = tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, LARGEST_U)
    series = unit * 0.16666666666666666 + 0.2
    series = series * unit + 0.25
    series = series * unit + 0.3333333333333333
    series = (series * unit + 0.5) * unit * unit + unit
    exponential = tl.where(unit < SMALL_U, series, _log2(1.0 - unit) * -0.6931471805599453)
    return _log2(exponential) * -0.6931471805599453

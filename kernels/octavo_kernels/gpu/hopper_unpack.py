"""Unpacks words to 16-bit tiles in the registers that feed Hopper's matrix unit. All of it exact.

Two values of 16 bits share a register. A nibble or-ed into the low bits of 128.0 in bfloat16, or of
1024.0 in float16, is that number plus the nibble. A byte of fp8 (e4m3) moved so that its exponent
and mantissa meet those of the wider type is too small by a power of two.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BFLOAT16_MAGIC = gl.constexpr(128.0)
FLOAT16_MAGIC = gl.constexpr(1024.0)


@triton.constexpr_function
def _nibble_asm(plane: int, is_half: bool, has_zeros: bool, has_scales: bool) -> str:
    kind = "f16x2" if is_half else "bf16x2"
    magic = "0x64006400" if is_half else "0x43004300"
    zero = "$2" if has_zeros else "0x64086408" if is_half else "0x43084308"
    shifted = "mov.b32 t, $1;" if plane == 0 else f"shr.u32 t, $1, {4 * plane};"
    if has_scales:
        scale = "$3" if has_zeros else "$2"
        end = f"sub.{kind} t, t, z; mul.{kind} $0, t, {scale};"
    else:
        end = f"sub.{kind} $0, t, z;"
    return (
        f"{{.reg .b32 t, z; mov.b32 z, {zero}; {shifted} "
        f"lop3.b32 t, t, 0x000f000f, {magic}, 0xea; {end}}}"
    )


@triton.constexpr_function
def _byte_asm(plane: int, is_half: bool) -> str:
    kind = "f16x2" if is_half else "bf16x2"
    factor = "0x5c005c00" if is_half else "0x7b807b80"
    mask = "0x3f803f80" if is_half else "0x07f007f0"
    sign = "shl.b32 a, $1, 8;" if plane == 0 else "mov.b32 a, $1;"
    left, right = (7, 1) if is_half else (4, 4)
    moved = f"shl.b32 b, $1, {left};" if plane == 0 else f"shr.u32 b, $1, {right};"
    return (
        f"{{.reg .b32 a, b, f; {sign} {moved} and.b32 b, b, {mask}; "
        f"lop3.b32 a, a, 0x80008000, b, 0xea; mov.b32 f, {factor}; mul.{kind} $0, a, f;}}"
    )


@gluon.jit
def nibbles(words, zero, scale, tokens, PLANE: gl.constexpr, HAS_ZEROS: gl.constexpr,
            HAS_SCALES: gl.constexpr):  # fmt: skip
    """words[64, 64] int16 -> (nibble - zero) * scale in the tokens' type; zero is given plus the
    magic."""
    asm: gl.constexpr = _nibble_asm(PLANE, tokens.dtype == gl.float16, HAS_ZEROS, HAS_SCALES)
    if HAS_ZEROS:
        if HAS_SCALES:
            return gl.inline_asm_elementwise(
                asm, "=r,r,r,r", [words, zero, scale], dtype=tokens.dtype, is_pure=True, pack=2
            )
        else:
            return gl.inline_asm_elementwise(
                asm, "=r,r,r", [words, zero], dtype=tokens.dtype, is_pure=True, pack=2
            )
    else:
        if HAS_SCALES:
            return gl.inline_asm_elementwise(
                asm, "=r,r,r", [words, scale], dtype=tokens.dtype, is_pure=True, pack=2
            )
        else:
            return gl.inline_asm_elementwise(
                asm, "=r,r", [words], dtype=tokens.dtype, is_pure=True, pack=2
            )


@gluon.jit
def fp8_bytes(words, tokens, PLANE: gl.constexpr):
    """words[64, 64] int16 -> the low (plane 0) or high bytes as numbers of the tokens' type."""
    asm: gl.constexpr = _byte_asm(PLANE, tokens.dtype == gl.float16)
    return gl.inline_asm_elementwise(asm, "=r,r", [words], dtype=tokens.dtype, is_pure=True, pack=2)


@gluon.jit
def load_zeros(zeros, at, tokens):
    """Zero points as `nibbles` takes them."""
    magic: gl.constexpr = FLOAT16_MAGIC if tokens.dtype == gl.float16 else BFLOAT16_MAGIC
    return (gl.load(zeros + at).to(gl.float32) + magic).to(tokens.dtype)

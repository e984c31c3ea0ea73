"""Random weights of 4 and 8 bits, packed, for tests of the products."""

import torch

from octavo_kernels.packed_weight import (
    MAX_TILES,
    PackedKind,
    PackedWeight,
    num_steps,
    pack_words,
    step_inputs,
)


def random_values(
    kind: PackedKind, shape: tuple[int, int], generator: torch.Generator
) -> torch.Tensor:
    device = generator.device
    if kind == "fp8":
        numbers = torch.randn(shape, generator=generator, device=device) * 60
        return numbers.clamp(-448, 448).to(torch.float8_e4m3fn)
    lowest, dtype = (0, torch.uint8) if kind == "int4" else (-128, torch.int8)
    highest = 16 if kind == "int4" else 128
    drawn = torch.randint(lowest, highest, shape, generator=generator, device=device)
    return drawn.to(dtype)


def random_weight(
    kind: PackedKind,
    shape: tuple[int, int],
    generator: torch.Generator,
    *,
    group_size: int | None,
    has_zeros: bool = False,
    scale_rows: int = 1,
    scale_dtype: torch.dtype = torch.float32,
) -> PackedWeight:
    num_rows, width = shape
    device = generator.device
    bits = 4 if kind == "int4" else 8
    padded = num_steps(width, bits) * step_inputs(bits)
    size = group_size or padded
    shape_of_scales = (-(-width // size), -(-num_rows // scale_rows))
    step = 0.01 if kind == "int4" else 0.0008
    scales = torch.rand(shape_of_scales, generator=generator, device=device) * step + step
    zeros = None
    if has_zeros:
        lowest, highest = (1, 17) if kind == "int4" else (-20, 20)
        zeros = torch.randint(
            lowest, highest, shape_of_scales, generator=generator, device=device
        ).half()
    return PackedWeight(
        kind=kind,
        words=pack_words(random_values(kind, shape, generator), bits),
        scales=scales.to(scale_dtype),
        zeros=zeros,
        num_rows=num_rows,
        width=width,
        group_size=size,
        scale_rows=scale_rows,
        arrivals=torch.zeros(MAX_TILES, dtype=torch.int32, device=device),
    )

"""Products of few tokens in bfloat16 at the shapes of an 8B model: alone, and with what the decoder
fuses around them. `quant_linear` has cuBLAS's times of the same shapes."""

from collections.abc import Callable, Iterator

import torch
from tests.bench.kernels.harness import Case, sets_beyond_cache

from octavo_kernels.linear_ops import (
    MAX_SKINNY_TOKENS,
    MAX_TILES,
    ROW_TILE,
    NormInput,
    NormOutput,
    RowNorm,
    embed_rows,
    single_row_linear,
    skinny_linear,
    vocabulary_linear,
)

# name -> rows, inputs, gated, adds to the residual
SHAPES = {
    "qkv": (6144, 4096, False, False),
    "o": (4096, 4096, False, True),
    "gate_up": (28672, 4096, True, False),
    "down": (4096, 14336, False, True),
}
NUM_TOKENS = (2, 8, 16, 32, 64)
VOCABULARY = (128256, 4096)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def product_bytes(num_rows: int, width: int, num_tokens: int) -> int:
    return 2 * (num_rows * width + num_tokens * (width + num_rows))


def single_row_case(name: str, weights: torch.Tensor) -> Case:
    num_rows, width, gated, adds = SHAPES[name]
    x = draw(1, width)
    norm = None if adds else RowNorm(draw(width), 0.0, 1e-5)
    residual = draw(1, num_rows) if adds else None

    def launch(i: int) -> object:
        return single_row_linear(x, weights[i], gated=gated, norm=norm, residual=residual)

    num_bytes = product_bytes(num_rows, width, 1)
    return Case(f"single_row_linear {name}", launch, len(weights), num_bytes)


def skinny_cases(name: str, weights: torch.Tensor, num_tokens: int) -> Iterator[Case]:
    num_rows, width, gated, adds = SHAPES[name]
    x = draw(num_tokens, width)
    arrivals = torch.zeros(MAX_TILES, device="cuda", dtype=torch.int32)
    squares = torch.ones(MAX_TILES, MAX_SKINNY_TOKENS, device="cuda")
    norm = add = None
    if adds:
        residual = draw(num_tokens, num_rows)
        scaled = torch.empty_like(residual)
        add = NormOutput(residual, draw(num_rows), 0.0, scaled, squares)
    else:
        norm = NormInput(squares, width // ROW_TILE, 1e-5)
    kinds: dict[str, Callable[[int], object]] = {
        "": lambda i: skinny_linear(x, weights[i], arrivals=arrivals),
        " fused": lambda i: skinny_linear(
            x, weights[i], gated=gated, norm=norm, add=add, arrivals=arrivals
        ),
    }
    if not gated:
        kinds[" fused, overlaps"] = lambda i: skinny_linear(
            x, weights[i], norm=norm, add=add, arrivals=arrivals, overlaps=True
        )
    num_bytes = product_bytes(num_rows, width, num_tokens)
    num_flops = 2.0 * num_rows * width * num_tokens
    for kind, launch in kinds.items():
        case = f"skinny_linear{kind} {name} T={num_tokens}"
        yield Case(case, launch, len(weights), num_bytes, num_flops)


def vocabulary_cases() -> Iterator[Case]:
    """The head's product and, the other way, the embedding with the first norm."""
    weights = draw(2, *VOCABULARY)
    for num_tokens in (1, 32, 128):
        x = draw(num_tokens, VOCABULARY[1])
        num_bytes = product_bytes(*VOCABULARY, num_tokens)

        def multiply(i: int, x: torch.Tensor = x) -> object:
            return vocabulary_linear(x, weights[i])

        yield Case(f"vocabulary_linear T={num_tokens}", multiply, len(weights), num_bytes)
        ids = torch.randint(VOCABULARY[0], (num_tokens,), dtype=torch.int32, device="cuda")
        norm = RowNorm(draw(VOCABULARY[1]), 0.0, 1e-5)

        def look_up(i: int, ids: torch.Tensor = ids, norm: RowNorm = norm) -> object:
            return embed_rows(ids, weights[i], 1.0, norm)

        num_bytes = 3 * num_tokens * VOCABULARY[1] * 2
        yield Case(f"embed_rows norm T={num_tokens}", look_up, len(weights), num_bytes)


def cases() -> Iterator[Case]:
    yield from vocabulary_cases()
    for name, (num_rows, width, _, _) in SHAPES.items():
        weights = draw(sets_beyond_cache(2 * num_rows * width), num_rows, width)
        yield single_row_case(name, weights)
        for num_tokens in NUM_TOKENS:
            yield from skinny_cases(name, weights, num_tokens)

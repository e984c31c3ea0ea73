"""Sampling over a vocabulary of 128,256 from bfloat16 logits."""

from collections.abc import Iterator

import torch
from tests.bench.kernels.harness import Case, sets_beyond_cache

from octavo_kernels import SamplingTensors, sample

NUM_TOKENS = 128256
# name -> temperature, top_k, top_p
KINDS = {
    "greedy": (0.0, 0, 1.0),
    "draw": (1.0, 0, 1.0),
    "top_p 0.9": (1.0, 0, 0.9),
    "top_k 50": (1.0, 50, 1.0),
    "top_k 50 top_p 0.9": (1.0, 50, 0.9),
}


def make_params(rows: int, temperature: float, top_k: int, top_p: float) -> SamplingTensors:
    return SamplingTensors(
        temperature=torch.full((rows,), temperature, device="cuda"),
        top_k=torch.full((rows,), top_k, device="cuda", dtype=torch.int32),
        top_p=torch.full((rows,), top_p, device="cuda"),
        min_p=torch.zeros(rows, device="cuda"),
        seeds=torch.arange(rows, device="cuda"),
        positions=torch.arange(rows, device="cuda"),
        all_greedy=temperature == 0,
        any_filter=top_k > 0 or top_p < 1,
    )


def cases() -> Iterator[Case]:
    for rows in (1, 32, 256):
        num_bytes = rows * NUM_TOKENS * 2
        sets = sets_beyond_cache(num_bytes)
        # The likeliest token has about a third, the likeliest hundred nine tenths, as in a model.
        logits = (5 * torch.randn(sets, rows, NUM_TOKENS, device="cuda")).bfloat16()
        for name, kind in KINDS.items():
            params = make_params(rows, *kind)

            def launch(
                i: int, logits: torch.Tensor = logits, params: SamplingTensors = params
            ) -> object:
                return sample(logits[i], params)

            yield Case(f"sample {name} peaked R={rows}", launch, sets, num_bytes)

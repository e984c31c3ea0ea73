"""Sampling over a vocabulary of 128,256 from bfloat16 logits, in float32 where rows change them."""

from collections.abc import Iterator
from typing import Any

import torch
from tests.bench.kernels.harness import Case, sets_beyond_cache

from octavo_kernels import LogitChanges, SamplingTensors, sample
from octavo_kernels.gpu import sampling
from octavo_kernels.gpu.logit_changes import changes_table

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


def changing_cases(rows: int) -> Iterator[Case]:
    """Greedy rows, each with a grammar's mask or with all penalties of a history of 1,024."""
    sets = sets_beyond_cache(rows * NUM_TOKENS * 4)
    logits = 5 * torch.randn(sets, rows, NUM_TOKENS, device="cuda")
    params = make_params(rows, *KINDS["greedy"])
    histories = torch.randint(NUM_TOKENS, (rows, 1024), device="cuda", dtype=torch.int32)
    mask = torch.full((NUM_TOKENS // 32,), -1, device="cuda", dtype=torch.int32)
    penalties = {"repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1}
    kinds: dict[str, dict[str, Any]] = {"mask": {"allowed": mask}, "penalties": penalties}
    for name, wishes in kinds.items():
        changes = [
            LogitChanges(history=history, num_prompt_tokens=512, **wishes) for history in histories
        ]
        table = changes_table(changes, logits.device)

        # The table holds addresses of the changes.
        def launch(i: int, table: torch.Tensor = table, _alive: object = changes) -> object:
            return sampling.sample(logits[i], params, table)

        yield Case(f"sample greedy {name} R={rows}", launch, sets, rows * NUM_TOKENS * 8)


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
        yield from changing_cases(rows)

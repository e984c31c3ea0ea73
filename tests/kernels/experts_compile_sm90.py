"""Compiles the products with experts for sm_90 without a GPU; see `compile_sm90`.

Arguments are cases, of all that are in CASES when there are none.
"""

import json
import sys

import torch
from tests.kernels.compile_sm90 import collect_launches

from octavo_kernels.expert_ops import Activation, ExpertWeights
from octavo_kernels.gpu.expert_route import route
from octavo_kernels.gpu.experts import grouped_experts

DTYPE = torch.bfloat16
SHAPES = {
    "qwen3": (128, 8, 2048, 768),
    "mixtral": (8, 2, 4096, 14336),
    "gpt-oss": (32, 4, 2880, 2880),
    # Half of the inner features, on each of two ranks.
    "gpt-oss-rank": (32, 4, 2880, 1440),
}
"""Experts, those of a token, hidden size, inner features."""
CASES = ("qwen3 1", "qwen3 512", "qwen3 2048", "mixtral 2048", "gpt-oss 32", "gpt-oss-rank 64")


def launch(model: str, num_tokens: int) -> None:
    """Nothing is computed: memory is not filled."""
    num_experts, top_k, hidden, inner = SHAPES[model]
    is_oss = model.startswith("gpt-oss")
    weights = ExpertWeights(
        gate_up=torch.empty(num_experts, 2 * inner, hidden, dtype=DTYPE),
        down=torch.empty(num_experts, hidden, inner, dtype=DTYPE),
        gate_up_bias=torch.empty(num_experts, 2 * inner, dtype=DTYPE) if is_oss else None,
        down_bias=torch.empty(num_experts, hidden, dtype=DTYPE) if is_oss else None,
        is_interleaved=is_oss,
        activation=Activation("clamped_swiglu", 1.7, 7.0) if is_oss else Activation("silu"),
    )
    logits = torch.empty(num_tokens, num_experts, dtype=DTYPE)
    shares, chosen = route(logits, top_k, normalizes=True, dtype=DTYPE)
    x = torch.empty(num_tokens, hidden, dtype=DTYPE)
    grouped_experts(x, shares, chosen, weights, use_tma=True)


def main(cases: list[str]) -> None:
    reports: list[dict[str, object]] = []
    collect_launches(reports)
    for case in cases or CASES:
        model, num_tokens = case.split()
        launch(model, int(num_tokens))
        for line in reports:
            print(json.dumps({"case": case} | line))
        reports.clear()


if __name__ == "__main__":
    main(sys.argv[1:])

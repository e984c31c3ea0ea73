"""Routing and one layer's experts, at the shapes of three models.

`python -m tests.bench.gpu_experts --sweep` tries other tiles on the same layers.
"""

from collections.abc import Iterator

import torch
from tests.bench.gpu_experts import COPY_BYTES_PER_S, LAYERS, Layer
from tests.bench.kernels.harness import Case

from octavo_kernels.expert_ops import route

NUM_TOKENS = (1, 32, 256, 2048)
NUM_SETS = 8
"""Launches in a graph. One layer's experts are gigabytes: no cache holds them."""


def route_case(num_experts: int, top_k: int, num_tokens: int) -> Case:
    logits = torch.randn(num_tokens, num_experts, device="cuda", dtype=torch.bfloat16)
    return Case(
        f"route {top_k} of {num_experts} T={num_tokens}",
        lambda i: route(logits, top_k, normalizes=True, dtype=torch.bfloat16),
        NUM_SETS,
        num_tokens * (2 * num_experts + 6 * top_k),
    )


def experts_case(model: str, layer: Layer, num_tokens: int) -> Case:
    _, top_k, hidden, inner, _ = LAYERS[model]
    run, reading_us = layer.launch(num_tokens)
    return Case(
        f"grouped_experts {model} T={num_tokens}",
        lambda i: run(),
        NUM_SETS,
        reading_us * 1e-6 * COPY_BYTES_PER_S,
        6.0 * hidden * inner * num_tokens * top_k,
    )


def cases() -> Iterator[Case]:
    device = torch.device("cuda", torch.cuda.current_device())
    for model in LAYERS:
        layer = Layer(model, device)
        for num_tokens in NUM_TOKENS:
            yield route_case(layer.num_experts, layer.top_k, num_tokens)
            yield experts_case(model, layer, num_tokens)

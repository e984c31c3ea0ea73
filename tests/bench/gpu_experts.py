"""Mixtures of experts on a GPU: `python -m tests.bench.gpu_experts` prints a table, fills a CSV.

    --sweep  microseconds of one layer's experts in a graph, for tiles and pipelines of other sizes
             beside those chosen; the floor is the bytes of the experts that the tokens chose

Without it, the engine with random weights: decode steps and whole workloads. There are no figures
of vLLM to set beside them. Routing of random weights is nearly even, the most that can be read.
"""

import argparse
import os
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.bench.gpu import (
    RESULTS,
    DeviceTimes,
    decode_rows,
    run,
    throughput_row,
)
from tests.bench.gpu_dummy import make_core
from tests.bench.gpu_rows import Row, append_rows, print_row
from tests.bench.gpu_workloads import fixed, mixed
from triton import OutOfResources

from octavo_kernels.expert_ops import Activation, ExpertWeights, route
from octavo_kernels.gpu import experts as kernels
from octavo_kernels.gpu.compile_only import compile_only
from octavo_kernels.gpu.experts import ExpertConfig, choose_block_m, expert_config

QWEN3_30B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
GPT_OSS_20B: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "vocab_size": 201088,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
MODELS = {"qwen3-30b-a3b": QWEN3_30B, "gpt-oss-20b": GPT_OSS_20B}
COPY_BYTES_PER_S = 4.3e12
"""Of an H200, read and written."""
SILU, CLAMPED = Activation("silu"), Activation("clamped_swiglu", 1.702, 7.0)
LAYERS = {
    "qwen3-30b-a3b": (128, 8, 2048, 768, SILU),
    "mixtral-8x7b": (8, 2, 4096, 14336, SILU),
    "gpt-oss-20b": (32, 4, 2880, 2880, CLAMPED),
}
"""Experts, those of a token, hidden size, inner features, activation."""
NUM_TOKENS = (1, 8, 32, 64, 128, 256, 512, 2048, 8192)
NUM_IN_GRAPH = 8
NUM_REPEATS = 9
NUM_CONFIGS_SHOWN = 3


def engine_rows(model: str) -> Iterable[Row]:
    core, _ = make_core(
        MODELS[model], max_num_seqs=1024, max_num_batched_tokens=8192, max_model_len=8192
    )
    times = DeviceTimes(core)
    run(core, fixed(64, 100, 16, 999))
    run(core, fixed(4, 2000, 8, 998))
    times.take()
    for batch in (1, 32, 256):
        for row in decode_rows(core, times, batch, vllm=0.0, goal=None):
            yield replace(row, case=f"{model} {row.case}", vllm=None)
    for name, jobs, of_prompt in (
        ("mixed1000", mixed(1000, 0), False),
        ("prefill 32 x 4096", fixed(32, 4096, 1, 3), True),
    ):
        row = throughput_row(core, f"{model} {name}", jobs, 0.0, 0.0, of_prompt=of_prompt)
        yield replace(row, vllm=None, goal=None)


class Layer:
    """One layer's experts with random weights, and tokens for them."""

    def __init__(self, model: str, device: torch.device) -> None:
        self.num_experts, self.top_k, hidden, inner, activation = LAYERS[model]
        self.hidden = hidden
        is_interleaved = activation.kind == "clamped_swiglu"

        def draw(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, 0.02)

        self.weights = ExpertWeights(
            gate_up=draw(self.num_experts, 2 * inner, hidden),
            down=draw(self.num_experts, hidden, inner),
            gate_up_bias=draw(self.num_experts, 2 * inner) if is_interleaved else None,
            down_bias=draw(self.num_experts, hidden) if is_interleaved else None,
            is_interleaved=is_interleaved,
            activation=activation,
        )
        self._bytes_of_expert = 3 * hidden * inner * 2
        self._draw = draw

    def launch(self, num_tokens: int) -> tuple[Callable[[], object], float]:
        """What multiplies so many tokens, and the microseconds that reading their experts takes."""
        x = self._draw(num_tokens, self.hidden)
        logits = self._draw(num_tokens, self.num_experts)
        shares, chosen = route(logits, self.top_k, normalizes=True, dtype=torch.bfloat16)
        floor_s = len(chosen.unique()) * self._bytes_of_expert / COPY_BYTES_PER_S
        return partial(kernels.grouped_experts, x, shares, chosen, self.weights), floor_s * 1e6


def _graph_us(once: Callable[[], object]) -> float:
    once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NUM_IN_GRAPH):
            once()
    times = []
    for _ in range(NUM_REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / NUM_IN_GRAPH * 1e3)
    return statistics.median(times[1:])


def variants(num_pairs: int, num_experts: int) -> Iterator[tuple[ExpertConfig, ExpertConfig]]:
    """Configurations of the two products, those chosen first."""
    chosen = choose_block_m(num_pairs, num_experts)
    average = -(-num_pairs // num_experts)
    both = [expert_config(chosen, 2, gated=gated, average=average) for gated in (True, False)]
    yield both[0], both[1]
    for block_m in {max(16, chosen // 2), chosen, min(128, chosen * 2)}:
        first, second = (expert_config(block_m, 2, gated=gated) for gated in (True, False))
        for stages, block_n in ((0, 0), (1, 0), (-1, 0), (0, 128), (0, 32)):
            changed = [
                replace(
                    one,
                    num_stages=one.num_stages + stages,
                    block_n=block_n or one.block_n,
                    num_warps=8 if (block_n or one.block_n) * block_m >= 8192 else 4,
                )
                for one in (first, second)
            ]
            yield changed[0], changed[1]
            if block_m <= 32:
                narrow = [
                    replace(one, block_k=64, num_stages=one.num_stages + 2) for one in changed
                ]
                yield narrow[0], narrow[1]


@contextmanager
def configured(gated: ExpertConfig, down: ExpertConfig) -> Iterator[None]:
    def given(block_m: int, itemsize: int, *, gated: bool, **_: Any) -> ExpertConfig:
        return first if gated else down

    first = gated
    saved = kernels.expert_config, kernels.choose_block_m
    kernels.expert_config = given
    kernels.choose_block_m = lambda num_pairs, num_experts: first.block_m
    try:
        yield
    finally:
        kernels.expert_config, kernels.choose_block_m = saved


def sweep(model: str, device: torch.device) -> None:
    layer = Layer(model, device)
    for num_tokens in NUM_TOKENS:
        configs = list(variants(num_tokens * layer.top_k, layer.num_experts))
        once, floor_us = layer.launch(num_tokens)
        with compile_only(os.cpu_count() or 1):
            for config in configs:
                with configured(*config):
                    once()
        found: list[tuple[float, str]] = []
        for config in configs:
            shown = " ".join(map(_shown, config))
            try:
                with configured(*config):
                    found.append((_graph_us(once), shown))
            except OutOfResources as error:
                print(f"  {shown}: {error}", flush=True)
        print(f"{model}, {num_tokens} tokens, floor {floor_us:.1f} us; chosen first", flush=True)
        for us, name in [found[0], *sorted(found)[:NUM_CONFIGS_SHOWN]]:
            print(f"  {us:8.1f} us  {name}", flush=True)


def _shown(config: ExpertConfig) -> str:
    return (
        f"{config.block_n}x{config.block_m}x{config.block_k}/{config.num_stages}/{config.num_warps}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*LAYERS], default="qwen3-30b-a3b")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.sweep:
        sweep(arguments.model, torch.device("cuda", torch.cuda.current_device()))
        return
    rows = []
    for row in engine_rows(arguments.model):
        print_row(row)
        rows.append(row)
    append_rows(arguments.out, rows)


if __name__ == "__main__":
    main()

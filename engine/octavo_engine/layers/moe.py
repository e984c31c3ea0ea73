"""Mixture of experts: a router chooses a few experts for each token; their outputs are summed.

Checkpoints store experts in three layouts:
  mixtral      block_sparse_moe.experts.N.{w1,w3,w2}, router block_sparse_moe.gate
  per_expert   mlp.experts.N.{gate_proj,up_proj,down_proj}, router mlp.gate
  interleaved  mlp.experts.{gate_up_proj,down_proj} [E, in, out] with biases, gate and up taking
               turns; router mlp.router with bias
In memory all are gate_up [E, 2I, H] and down [E, H, I]; gate comes first but in `interleaved`.
Experts that stay quantised are layers of their own instead, multiplied one after the other.
A rank has some of each expert's inner features I; its output is its share of the sum over ranks.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch.nn import functional

from octavo_engine.layers.linear import Build, LinearLayer, make_linear, matrix_slot
from octavo_engine.loading.parts import Part, discard, share_into, transposed_share_into
from octavo_engine.loading.slots import Slot, copy_into
from octavo_engine.model_config import ModelConfig, MoeConfig
from octavo_engine.parallel.shares import Share, even_share
from octavo_engine.quantization.products import PackedLinear
from octavo_kernels.expert_ops import (
    Activation,
    ExpertWeights,
    grouped_experts,
    picks_by_expert,
    route,
)
from octavo_kernels.linear_ops import ACTIVATIONS

EXPERT_NAMES = {
    "mixtral": ("w1", "w3", "w2"),
    "per_expert": ("gate_proj", "up_proj", "down_proj"),
}


class MoeBlock:
    def __init__(self, layer_name: str, config: ModelConfig, moe: MoeConfig, build: Build) -> None:
        block = "block_sparse_moe" if moe.layout == "mixtral" else "mlp"
        router = "router" if moe.layout == "interleaved" else "gate"
        self._experts_name = f"{layer_name}.{block}.experts"
        self._router_name = f"{layer_name}.{block}.{router}"
        self._config, self._moe = config, moe
        self._share = even_share(moe.intermediate_size, build.group.rank, build.group.size)
        hidden, inner, num = config.hidden_size, self._share.size, moe.num_experts
        has_bias = moe.layout == "interleaved"
        self.router = build.empty(num, hidden)
        self.router_bias = build.empty(num) if has_bias else None
        self._quantized = self._quantized_experts(build)
        if self._quantized:
            num = 0
        self.gate_up = build.empty(num, 2 * inner, hidden)
        self.down = build.empty(num, hidden, inner)
        self.gate_up_bias = build.empty(num, 2 * inner) if has_bias else None
        adds_down_bias = has_bias and build.keeps_bias(self._share)
        self.down_bias = build.empty(num, hidden) if adds_down_bias else None
        self._roundings = [
            (
                build.input_rounding(modules[:2], hidden),
                build.input_rounding(modules[2:], moe.intermediate_size, self._share),
            )
            for modules in self._expert_modules()
            if not self._quantized
        ]
        """For each expert, of the inputs of gate_up and of down; none where all are one tensor."""
        roundings = [one for pair in self._roundings for one in pair if one is not None]
        self._grouped = None if self._quantized or roundings else self._weights()

    def _weights(self) -> ExpertWeights:
        config = self._config
        return ExpertWeights(
            gate_up=self.gate_up,
            down=self.down,
            gate_up_bias=self.gate_up_bias,
            down_bias=self.down_bias,
            is_interleaved=self._moe.layout == "interleaved",
            activation=Activation(
                config.activation, config.swiglu_alpha or 1.0, config.swiglu_limit or 0.0
            ),
        )

    def _quantized_experts(self, build: Build) -> list[tuple[LinearLayer, LinearLayer]]:
        """Each expert's (gate_up, down), where all of them stay quantised."""
        if not build.keeps_quantized or build.quantization is None:
            return []
        hidden, inner, share = self._config.hidden_size, self._moe.intermediate_size, self._share
        # On no device until it is known that they are wanted.
        for device in (torch.device("meta"), build.device):
            made = replace(build, device=device)
            experts = [
                (
                    make_linear(
                        [Part(gate, inner, share), Part(up, inner, share)],
                        hidden,
                        has_bias=False,
                        build=made,
                    ),
                    make_linear(
                        [Part(down, hidden)], inner, has_bias=False, build=made, inputs=share
                    ),
                )
                for gate, up, down in self._expert_modules()
            ]
            layers = [layer for expert in experts for layer in expert]
            if not all(isinstance(layer, PackedLinear) for layer in layers):
                return []
        return experts

    def slots(self) -> Iterator[Slot]:
        yield _whole(f"{self._router_name}.weight", self.router)
        if self.router_bias is not None:
            yield _whole(f"{self._router_name}.bias", self.router_bias)
        yield from (
            self._interleaved_slots() if self._moe.layout == "interleaved" else self._expert_slots()
        )

    def _expert_modules(self) -> list[tuple[str, ...]]:
        """Names of each expert's gate, up and down; none where all experts are one tensor."""
        if self._moe.layout == "interleaved":
            return []
        return [
            tuple(
                f"{self._experts_name}.{expert}.{name}" for name in EXPERT_NAMES[self._moe.layout]
            )
            for expert in range(self._moe.num_experts)
        ]

    def _expert_slots(self) -> Iterator[Slot]:
        if self._quantized:
            for layers in self._quantized:
                for layer in layers:
                    yield from layer.slots()
            return
        hidden, inner, share = self._config.hidden_size, self._moe.intermediate_size, self._share
        for expert, (gate, up, down) in enumerate(self._expert_modules()):
            gate_up = self.gate_up[expert]
            yield matrix_slot(Part(gate, inner, share), hidden, gate_up[: share.size])
            yield matrix_slot(Part(up, inner, share), hidden, gate_up[share.size :])
            yield matrix_slot(Part(down, hidden), inner, self.down[expert], share)
            for rounding in self._roundings[expert]:
                if rounding is not None:
                    yield from rounding.slots()

    def _interleaved_slots(self) -> Iterator[Slot]:
        """gate_up keeps the checkpoint's order of rows: gate, up, gate, ..."""
        num, hidden = self._moe.num_experts, self._config.hidden_size
        inner = self._moe.intermediate_size
        ((first, length),) = self._share.runs
        rows = Share(((2 * first, 2 * length),))
        name = f"{self._experts_name}.gate_up_proj"
        write = transposed_share_into(self.gate_up, None, rows)
        yield Slot(name, (num, hidden, 2 * inner), write, is_experts=True)
        assert self.gate_up_bias is not None
        write = share_into(self.gate_up_bias, None, rows)
        yield Slot(f"{name}_bias", (num, 2 * inner), write)
        name = f"{self._experts_name}.down_proj"
        write = transposed_share_into(self.down, None, None, self._share)
        yield Slot(name, (num, inner, hidden), write, is_experts=True)
        write = discard if self.down_bias is None else copy_into(self.down_bias)
        yield Slot(f"{name}_bias", (num, hidden), write)

    def finish(self) -> None:
        for layers in self._quantized:
            for layer in layers:
                layer.finish()

    @property
    def reads_back(self) -> bool:
        """Whether a GPU is waited for, to learn how many tokens each expert has."""
        return self._grouped is None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x[T, hidden_size] -> the rank's share of the sum [T, hidden_size]."""
        weights, chosen = self._route(x)
        if self._grouped is not None:
            return grouped_experts(x, weights, chosen, self._grouped)
        out = torch.zeros_like(x)
        for expert, tokens, picks in picks_by_expert(chosen, self._moe.num_experts):
            y = self._expert(expert, x[tokens]) * weights.flatten()[picks, None]
            out.index_add_(0, tokens, y.to(out.dtype))
        return out

    def _route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and ids of the chosen experts, [T, num_experts_per_token] each."""
        moe = self._moe
        return route(
            functional.linear(x, self.router, self.router_bias),
            moe.num_experts_per_token,
            # The softmax of the largest logits is that of all, divided by what these have of it.
            normalizes=moe.normalizes_top_k or moe.router == "top_k_then_softmax",
            dtype=torch.float32 if moe.keeps_float_weights else x.dtype,
        )

    def _expert(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """Of experts that are layers of their own, or round their inputs."""
        activate = ACTIVATIONS[self._config.activation]
        if self._quantized:
            gate_up, down = self._quantized[expert]
            return down(activate(gate_up(x)))
        round_x, round_inner = self._roundings[expert]
        x = x if round_x is None else round_x(x)
        inner = activate(functional.linear(x, self.gate_up[expert]))
        inner = inner if round_inner is None else round_inner(inner)
        return functional.linear(inner, self.down[expert])


def _whole(name: str, target: torch.Tensor) -> Slot:
    return Slot(name, tuple(target.shape), copy_into(target))

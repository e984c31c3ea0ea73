"""The decoder of every family of the table: embedding, blocks, final norm, head.

Knows config and layers; knows no request, no scheduler and no file.
"""

from collections.abc import Iterator

import torch
from torch.nn import functional

from octavo_engine.batch import KVGroup
from octavo_engine.layers.attention import Attention
from octavo_engine.layers.context import LayerCache, StepContext
from octavo_engine.layers.linear import Build, Part, make_linear
from octavo_engine.layers.mlp import GatedMLP
from octavo_engine.layers.moe import MoeBlock
from octavo_engine.layers.norm import RMSNorm
from octavo_engine.layers.packed import PackedMatrix, pack_for_cpu
from octavo_engine.loading.slots import Slot, copy_into
from octavo_engine.model_config import ModelConfig
from octavo_engine.rope import RopeConfig

EMBEDDING_NAME = "model.embed_tokens"
HEAD_NAME = "lm_head"


class Block:
    """One decoder layer, on (x, residual): x is what the last sublayer added, not yet summed."""

    def __init__(
        self, layer_id: int, config: ModelConfig, group_idx: int, rope_idx: int | None, build: Build
    ) -> None:
        name = f"model.layers.{layer_id}"
        layer = config.layers[layer_id]

        def norm(norm_name: str | None) -> RMSNorm | None:
            return None if norm_name is None else _norm(f"{name}.{norm_name}", config, build)

        self.before_attention = norm(config.norms.before_attention)
        self.after_attention = norm(config.norms.after_attention)
        self.before_mlp = norm(config.norms.before_mlp)
        self.after_mlp = norm(config.norms.after_mlp)
        self.attention = Attention(
            f"{name}.self_attn",
            config,
            layer,
            group_idx=group_idx,
            rope_idx=rope_idx,
            build=build,
        )
        self.mlp: GatedMLP | MoeBlock
        if layer.is_moe and config.moe is not None:
            self.mlp = MoeBlock(name, config, config.moe, build)
        else:
            self.mlp = GatedMLP(f"{name}.mlp", config, build=build)
        self._residual_scale = config.residual_scale

    def slots(self) -> Iterator[Slot]:
        for norm in (self.before_attention, self.after_attention, self.before_mlp, self.after_mlp):
            if norm is not None:
                yield from norm.slots()
        yield from self.attention.slots()
        yield from self.mlp.slots()

    def finish(self) -> None:
        self.attention.finish()
        self.mlp.finish()

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        context: StepContext,
        cache: LayerCache,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = _add_norm(self.before_attention, x, residual)
        x = self._added(self.after_attention, self.attention(x, context, cache))
        x, residual = _add_norm(self.before_mlp, x, residual)
        return self._added(self.after_mlp, self.mlp(x)), residual

    def _added(self, norm: RMSNorm | None, x: torch.Tensor) -> torch.Tensor:
        if norm is not None:
            x = norm(x)
        return x if self._residual_scale == 1.0 else x * self._residual_scale


class Decoder:
    def __init__(self, config: ModelConfig, groups: tuple[KVGroup, ...], build: Build) -> None:
        self.config = config
        group_of = {id_: idx for idx, group in enumerate(groups) for id_ in group.layer_ids}
        self.ropes: tuple[RopeConfig, ...] = tuple(
            dict.fromkeys(layer.rope for layer in config.layers if layer.rope is not None)
        )
        self.embedding = build.empty(config.vocab_size, config.hidden_size)
        self.blocks = [
            Block(
                layer_id,
                config,
                group_of[layer_id],
                None if layer.rope is None else self.ropes.index(layer.rope),
                build,
            )
            for layer_id, layer in enumerate(config.layers)
        ]
        self.norm = _norm("model.norm", config, build)
        self.head = (
            None
            if config.tie_word_embeddings
            else make_linear(
                [Part(HEAD_NAME, config.vocab_size)],
                config.hidden_size,
                has_bias=False,
                build=build,
            )
        )
        self._packed_embedding: PackedMatrix | None = None
        scale = torch.tensor(config.embedding_scale, dtype=build.dtype)
        self._embedding_scale = float(scale)

    def slots(self) -> Iterator[Slot]:
        """One slot for every tensor of the checkpoint."""
        shape = tuple(self.embedding.shape)
        yield Slot(f"{EMBEDDING_NAME}.weight", shape, copy_into(self.embedding))
        for block in self.blocks:
            yield from block.slots()
        yield from self.norm.slots()
        if self.head is not None:
            yield from self.head.slots()

    def optional_names(self) -> frozenset[str]:
        """Tensors that a checkpoint may hold without need: a tied head, saved all the same."""
        return frozenset({f"{HEAD_NAME}.weight"} if self.head is None else ())

    def finish(self) -> None:
        """After the slots are filled."""
        for block in self.blocks:
            block.finish()
        if self.head is not None:
            self.head.finish()
        else:
            self._packed_embedding = pack_for_cpu(self.embedding)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids[T] -> [T, hidden_size], the first layer's input."""
        x = functional.embedding(token_ids, self.embedding)
        return x if self._embedding_scale == 1.0 else x * self._embedding_scale

    def hidden_states(
        self, token_ids: torch.Tensor, context: StepContext, caches: list[LayerCache]
    ) -> torch.Tensor:
        """token_ids[T] -> [T, hidden_size] after the final norm. caches: one for each layer."""
        x = self.embed(token_ids)
        residual: torch.Tensor | None = None
        for block, cache in zip(self.blocks, caches, strict=True):
            x, residual = block(x, residual, context, cache)
        assert residual is not None
        return self.norm.add(x, residual)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden[R, hidden_size] -> [R, vocab_size] float32."""
        return self.narrow_logits(hidden).float()

    def narrow_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same numbers in hidden's dtype: half the bytes where they are read but once."""
        if self.head is not None:
            logits = self.head(hidden)
        elif self._packed_embedding is not None:
            logits = self._packed_embedding(hidden)
        else:
            logits = functional.linear(hidden, self.embedding)
        if self.config.logits_divisor != 1.0:
            logits = logits / self.config.logits_divisor
        if (cap := self.config.final_softcap) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits


def _norm(name: str, config: ModelConfig, build: Build) -> RMSNorm:
    return RMSNorm(
        name,
        config.hidden_size,
        eps=config.norm_eps,
        weight_offset=config.norm_weight_offset,
        build=build,
    )


def _add_norm(
    norm: RMSNorm | None, x: torch.Tensor, residual: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(input of a sublayer, running sum). Without a residual, x is the running sum itself."""
    if norm is None:
        total = x if residual is None else x + residual
        return total, total
    if residual is None:
        return norm(x), x
    return norm.add(x, residual)

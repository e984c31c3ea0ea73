"""The decoder of every family of the table: embedding, blocks, final norm, head.

Knows config and layers; knows no request, no scheduler and no file.
"""

from collections.abc import Iterator

import torch

from octavo_engine.batch import KVGroup
from octavo_engine.layers.attention import Attention
from octavo_engine.layers.context import LayerCache, StepContext, WantedTokens
from octavo_engine.layers.linear import Build
from octavo_engine.layers.mlp import GatedMLP
from octavo_engine.layers.moe import MoeBlock
from octavo_engine.layers.norm import RMSNorm
from octavo_engine.layers.vocabulary import Vocabulary
from octavo_engine.loading.slots import Slot
from octavo_engine.model_config import ModelConfig
from octavo_engine.rope import RopeConfig
from octavo_kernels.linear_ops import ForNorm, PendingProduct


class Block:
    """One decoder layer, on (x, residual): x is what the last sublayer added, not yet summed; None
    where the residual has it.

    Of several ranks each has a share of x, unless a norm has followed, which needs the whole.
    """

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
        self._group = build.group

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
        x: torch.Tensor | None,
        residual: torch.Tensor | None,
        context: StepContext,
        cache: LayerCache,
        wanted: WantedTokens | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Of the wanted tokens; None: of all."""
        inner, residual = self._add_norm(self.before_attention, x, residual, self.after_mlp is None)
        attended = self.attention(inner, context, cache, wanted)
        if wanted is not None:
            residual = residual.index_select(0, wanted.tokens)
        x, residual = self._added(self.after_attention, attended, residual)
        inner, residual = self._add_norm(self.before_mlp, x, residual, self.after_attention is None)
        return self._added(self.after_mlp, self.mlp(inner), residual)

    def write_pages(
        self,
        x: torch.Tensor | None,
        residual: torch.Tensor | None,
        context: StepContext,
        cache: LayerCache,
    ) -> None:
        """Of a call only what it leaves in the pages."""
        inner, _ = self._add_norm(self.before_attention, x, residual, self.after_mlp is None)
        self.attention.write_pages(inner, context, cache)

    def _added(
        self, norm: RMSNorm | None, x: ForNorm, residual: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """(what is to be added, running sum); None: the running sum has it."""
        if isinstance(x, PendingProduct):  # the sublayer knows that nothing comes between
            return None, x.add_to(residual)
        if norm is not None:
            x = norm(self._group.all_reduce(x))
        return (x if self._residual_scale == 1.0 else x * self._residual_scale), residual

    def _add_norm(
        self,
        norm: RMSNorm | None,
        x: torch.Tensor | None,
        residual: torch.Tensor | None,
        is_share: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(input of a sublayer, running sum). Without a residual, x is the running sum itself."""
        if x is None or residual is None:
            total = residual if x is None else x
            assert total is not None
            return (total if norm is None else norm(total)), total
        if norm is not None:
            return norm.add_shares(x, residual) if is_share else norm.add(x, residual)
        total = (self._group.all_reduce(x) if is_share else x) + residual
        return total, total


class Decoder:
    def __init__(self, config: ModelConfig, groups: tuple[KVGroup, ...], build: Build) -> None:
        self.config = config
        self.num_ranks = build.group.size
        group_of = {id_: idx for idx, group in enumerate(groups) for id_ in group.layer_ids}
        self.ropes: tuple[RopeConfig, ...] = tuple(
            dict.fromkeys(layer.rope for layer in config.layers if layer.rope is not None)
        )
        self.vocabulary = Vocabulary(config, build)
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

    @property
    def reads_back(self) -> bool:
        """Whether a pass on a GPU waits for numbers from there: it cannot be captured then."""
        experts = [block.mlp for block in self.blocks if isinstance(block.mlp, MoeBlock)]
        return any(block.reads_back for block in experts)

    def slots(self) -> Iterator[Slot]:
        """One slot for every tensor of the checkpoint."""
        yield from self.vocabulary.embedding_slots()
        for block in self.blocks:
            yield from block.slots()
        yield from self.norm.slots()
        yield from self.vocabulary.head_slots()

    def optional_names(self) -> frozenset[str]:
        """Tensors that a checkpoint may hold without need."""
        return self.vocabulary.optional_names()

    def finish(self) -> None:
        """After the slots are filled."""
        for block in self.blocks:
            block.finish()
        self.vocabulary.finish()

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids[T] -> [T, hidden_size], the first layer's input."""
        return self.vocabulary.embed(token_ids)

    def hidden_states(
        self, token_ids: torch.Tensor, context: StepContext, caches: list[LayerCache]
    ) -> torch.Tensor:
        """token_ids[T] -> [R, hidden_size] of the wanted tokens after the final norm. caches: one
        for each layer."""
        x: torch.Tensor | None = self.embed(token_ids)
        residual: torch.Tensor | None = None
        for block, cache in zip(self.blocks[:-1], caches[:-1], strict=True):
            x, residual = block(x, residual, context, cache)
        last, wanted = self.blocks[-1], context.wanted
        if wanted is not None and not len(wanted.tokens):
            last.write_pages(x, residual, context, caches[-1])
            return self.norm.weight.new_empty(0, self.config.hidden_size)
        x, residual = last(x, residual, context, caches[-1], wanted)
        if x is None:
            return self.norm(residual)
        if last.after_mlp is None:
            return self.norm.add_shares(x, residual)[0]
        return self.norm.add(x, residual)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden[R, hidden_size] -> [R, vocab_size] float32."""
        return self.narrow_logits(hidden).float()

    def narrow_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same numbers in hidden's dtype: half the bytes where they are read but once."""
        return self.vocabulary.logits(hidden)

    def largest(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden[R, hidden_size] -> [R] int64: the id of each row's largest logit, the first of
        equal ones; the same on all ranks."""
        return self.vocabulary.largest(hidden)


def _norm(name: str, config: ModelConfig, build: Build) -> RMSNorm:
    return RMSNorm(
        name,
        config.hidden_size,
        eps=config.norm_eps,
        weight_offset=config.norm_weight_offset,
        build=build,
    )

"""Causal self-attention over pages. The config says which variant, never a family's name.

A rank has some of the heads; what it returns is its share of the sum over ranks.
"""

from collections.abc import Iterator

import torch

import octavo_kernels
from octavo_engine.layers.context import LayerCache, StepContext, WantedTokens
from octavo_engine.layers.linear import Build, make_linear, multiply_for_norm
from octavo_engine.layers.norm import RMSNorm, SharedRMSNorm
from octavo_engine.loading.parts import Part, share_into
from octavo_engine.loading.slots import Slot
from octavo_engine.model_config import LayerConfig, ModelConfig
from octavo_engine.parallel.shares import Share, head_shares, stacked
from octavo_kernels.linear_ops import ForNorm


class Attention:
    def __init__(
        self,
        name: str,
        config: ModelConfig,
        layer: LayerConfig,
        *,
        group_idx: int,
        rope_idx: int | None,
        build: Build,
    ) -> None:
        self._config = config
        self._window = layer.window
        self._group_idx = group_idx
        self._rope_idx = rope_idx
        self._shares = head_shares(config, build.group.rank, build.group.size)
        self._q_size = self._shares.q.size
        self._kv_size = self._shares.kv.size
        self._name = name
        self.qkv = make_linear(
            self._qkv_parts(), config.hidden_size, has_bias=config.has_qkv_bias, build=build
        )
        self.output = make_linear(
            [Part(f"{name}.o_proj", config.hidden_size)],
            config.num_heads * config.head_dim,
            has_bias=config.has_output_bias,
            build=build,
            inputs=self._shares.q,
        )
        self.q_norm = self._qk_norm("q_norm", config.num_heads, self._shares.q, build)
        self.k_norm = self._qk_norm("k_norm", config.num_kv_heads, self._shares.kv, build)
        self.sinks = build.empty(self._shares.num_q_heads) if config.has_sinks else None
        norms = config.norms
        self._is_normed_next = (
            norms.before_mlp is not None
            and norms.after_attention is None
            and config.residual_scale == 1.0
            and build.group.size == 1
        )

    def _qkv_parts(self) -> list[Part]:
        q, kv = self._shares.q, self._shares.kv
        q_rows = self._config.num_heads * self._config.head_dim
        kv_rows = self._config.num_kv_heads * self._config.head_dim
        if self._config.has_packed_qkv:
            rows = stacked([(q, q_rows), (kv, kv_rows), (kv, kv_rows)])
            return [Part(f"{self._name}.qkv_proj", q_rows + 2 * kv_rows, rows)]
        return [
            Part(f"{self._name}.q_proj", q_rows, q),
            Part(f"{self._name}.k_proj", kv_rows, kv),
            Part(f"{self._name}.v_proj", kv_rows, kv),
        ]

    def _qk_norm(self, name: str, num_heads: int, share: Share, build: Build) -> RMSNorm | None:
        config = self._config
        if config.qk_norm == "none":
            return None
        name = f"{self._name}.{name}"
        eps, offset = config.norm_eps, config.norm_weight_offset
        if config.qk_norm == "head":
            return RMSNorm(name, config.head_dim, eps=eps, weight_offset=offset, build=build)
        whole = num_heads * config.head_dim
        return SharedRMSNorm(name, whole, share, eps=eps, weight_offset=offset, build=build)

    @property
    def _fused_norm_weights(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The weights of norms over each head that the rotation applies on its way."""
        if self._config.qk_norm != "head" or self.q_norm is None or self.k_norm is None:
            return None
        if self._rope_idx is None or self._config.norm_weight_offset != 0.0:
            return None
        return self.q_norm.weight, self.k_norm.weight

    def slots(self) -> Iterator[Slot]:
        yield from self.qkv.slots()
        yield from self.output.slots()
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                yield from norm.slots()
        if self.sinks is not None:
            write = share_into(self.sinks, self._shares.q_heads)
            yield Slot(f"{self._name}.sinks", (self._config.num_heads,), write)

    def finish(self) -> None:
        self.qkv.finish()
        self.output.finish()

    def __call__(
        self,
        x: torch.Tensor,
        context: StepContext,
        cache: LayerCache,
        wanted: WantedTokens | None = None,
    ) -> ForNorm:
        """x[T, hidden_size] -> the rank's share of the sum [R, hidden_size], R being T where all
        tokens are wanted (None); where nothing but the next norm follows, what `linear_for_norm`
        leaves. Writes this step's keys and values to the pages."""
        attended = self.attend(self.qkv(x), context, cache, wanted)
        if self._is_normed_next:
            return multiply_for_norm(self.output, attended)
        return self.output(attended)

    def write_pages(self, x: torch.Tensor, context: StepContext, cache: LayerCache) -> None:
        """Of a call only what it leaves in the pages."""
        self._rotate_and_write(self.qkv(x), context, cache)

    def attend(
        self,
        qkv: torch.Tensor,
        context: StepContext,
        cache: LayerCache,
        wanted: WantedTokens | None = None,
    ) -> torch.Tensor:
        """What lies between the two products: [T, q, k and v side by side] -> [R, q_size]."""
        q = self._rotate_and_write(qkv, context, cache)
        attention = context.groups[self._group_idx].attention
        if wanted is not None:
            assert wanted.attention is not None
            q, attention = q.index_select(0, wanted.tokens), wanted.attention
        out = octavo_kernels.paged_attention(
            q,
            cache.k,
            cache.v,
            attention,
            scale=self._config.attention_scale,
            window=self._window,
            softcap=self._config.attention_softcap,
            sinks=self.sinks,
            scales=cache.scales,
        )
        return out.reshape(-1, self._q_size)

    def _rotate_and_write(
        self, qkv: torch.Tensor, context: StepContext, cache: LayerCache
    ) -> torch.Tensor:
        """The queries [T, heads, head_dim]; keys and values go to the pages."""
        config = self._config
        group = context.groups[self._group_idx]
        q, k, v = self._heads(qkv)
        if self._rope_idx is None:
            octavo_kernels.kv_write(
                k,
                v,
                cache.k,
                cache.v,
                group.slots,
                cache_rows=group.cache_rows,
                scales=cache.scales,
            )
        else:
            rope = context.ropes[self._rope_idx]
            octavo_kernels.rope_kv_write(
                q,
                k,
                v,
                rope.cos,
                rope.sin,
                rope.positions,
                cache.k,
                cache.v,
                group.slots,
                interleaved=config.is_rope_interleaved,
                qk_norm=self._fused_norm_weights,
                eps=config.norm_eps,
                cache_rows=group.cache_rows,
                scales=cache.scales,
            )
        return q

    def _heads(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values [T, heads, head_dim], normalised where the model does that and
        the rotation does not."""
        q, k, v = torch.split(qkv, [self._q_size, self._kv_size, self._kv_size], dim=-1)
        head_dim = self._config.head_dim
        if self._config.qk_norm == "projection" and self.q_norm and self.k_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.view(-1, part.shape[-1] // head_dim, head_dim) for part in (q, k, v))
        if self._config.qk_norm == "head" and self._fused_norm_weights is None:
            assert self.q_norm is not None
            assert self.k_norm is not None
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

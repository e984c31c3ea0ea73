"""What a model is, in numbers and choices: one frozen `ModelConfig` for every family.

Knows no tensors and no files; `models.families` makes it from a checkpoint's config.
"""

from dataclasses import dataclass
from typing import Literal

from octavo_engine.batch import KVGroup
from octavo_engine.rope import RopeConfig

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu"]
QKNorm = Literal["none", "head", "projection"]


@dataclass(frozen=True, kw_only=True)
class BlockNorms:
    """Names of a decoder block's norms in the checkpoint; None where the family has none."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    router: Literal["softmax_then_top_k", "top_k_then_softmax"]
    normalizes_top_k: bool
    """Whether the chosen experts' weights are divided by their sum (softmax_then_top_k only)."""
    keeps_float_weights: bool
    """Whether the chosen experts' weights stay float32 instead of the model's dtype."""
    layout: Literal["mixtral", "per_expert", "interleaved"]
    """How the checkpoint stores the experts; see `layers.moe`."""


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    window: int | None
    """Tokens a query sees, itself included; None is full attention."""
    rope: RopeConfig | None
    """None: this layer rotates nothing."""
    is_moe: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    """Tokens of the model's own context, scaling of its positions included."""
    checkpoint_dtype: str
    tie_word_embeddings: bool

    norms: BlockNorms
    norm_eps: float
    norm_weight_offset: float
    qk_norm: QKNorm
    activation: Activation
    swiglu_alpha: float | None
    swiglu_limit: float | None

    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_packed_qkv: bool
    """Whether the checkpoint itself stores q, k and v as one tensor."""
    has_packed_gate_up: bool
    has_sinks: bool
    is_rope_interleaved: bool

    attention_scale: float
    attention_softcap: float | None
    final_softcap: float | None
    embedding_scale: float
    residual_scale: float
    logits_divisor: float

    layers: tuple[LayerConfig, ...]
    moe: MoeConfig | None


def kv_groups(windows: list[int | None]) -> tuple[KVGroup, ...]:
    """Groups the layers (one window each) so that every group caches the same number of layers.

    Kinds of nearly equal size take the largest as the common size; otherwise the smallest, and
    larger kinds are cut into several groups. The last group of a kind may be short: it is padded.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer_id, window in enumerate(windows):
        kinds.setdefault(window, []).append(layer_id)
    sizes = [len(ids) for ids in kinds.values()]
    smallest, largest = min(sizes), max(sizes)
    size = largest if largest < 1.25 * smallest else smallest
    return tuple(
        KVGroup(layer_ids=tuple(ids[first : first + size]), window=window)
        for window, ids in kinds.items()
        for first in range(0, len(ids), size)
    )


def last_group_idx(groups: tuple[KVGroup, ...]) -> int:
    """Of the group that the last layer belongs to."""
    return max(range(len(groups)), key=lambda group_idx: max(groups[group_idx].layer_ids))


def original_context_len(config: ModelConfig) -> int | None:
    """Where rotations begin to depend on the prompt's length; None: they never do."""
    ropes = [layer.rope for layer in config.layers if layer.rope is not None]
    limits = [
        rope.max_position_embeddings
        if rope.kind == "dynamic"
        else rope.original_max_position_embeddings
        for rope in ropes
        if rope.depends_on_length
    ]
    return min(limits, default=None)


def restart_len(config: ModelConfig) -> int | None:
    """Where a growing sequence's rotations all change at once; None: they never do."""
    ropes = [layer.rope for layer in config.layers if layer.rope is not None]
    lens = [rope.original_max_position_embeddings for rope in ropes if rope.kind == "longrope"]
    return min(lens, default=None)

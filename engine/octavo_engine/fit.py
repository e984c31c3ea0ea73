"""What a model takes of a GPU's memory and what is left for pages, from its config alone.

Pure arithmetic: nothing is loaded and no GPU is asked. The engine measures the same parts when it
starts (`cuda.memory`); the numbers that are not the model's own were measured there, on an H200.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from octavo_engine.config import KVCacheDType
from octavo_engine.errors import ConfigError
from octavo_engine.layers.linear import Build
from octavo_engine.loading.slots import Slot
from octavo_engine.memory_facts import (
    CONTEXT_BYTES,
    DRIVER_SHARE,
    GIB,
    LARGEST_GRAPH_TOKENS,
    MARGIN_BYTES,
    MIB,
    NUM_PROBE_BLOCKS,
    RANKS_BYTES,
    rank_bytes,
    rank_kv_heads,
)
from octavo_engine.model_config import ModelConfig, kv_groups
from octavo_engine.models.decoder import Decoder
from octavo_engine.parallel.shares import refuse_impossible
from octavo_engine.quantization.format import Packing
from octavo_engine.quantization.scheme import LinearScheme, Scheme
from octavo_engine.runner.kv_cache import PageShape, block_bytes, stored_shape
from octavo_engine.scheduling.capacity import capacity_tokens

GPU_BYTES: Mapping[str, int] = {
    "a10": 23_028 * MIB,
    "a100-40gb": 40_960 * MIB,
    "a100-80gb": 81_920 * MIB,
    "h100": 81_559 * MIB,
    "h200": 143_771 * MIB,
    "l4": 23_034 * MIB,
    "l40s": 46_068 * MIB,
    "rtx-4090": 24_564 * MIB,
}
"""As the driver counts them."""
HOPPER = frozenset({"h100", "h200"})
"""GPUs whose large steps never have gate and up in memory (`octavo_kernels.gpu.hopper_gated`)."""
WORKSPACE_BYTES = 32 * MIB
"""Of cuBLAS."""
SAMPLING_BYTES = 17
"""For a row and a word of the vocabulary: logits, logprobs and penalties of the largest step."""
HIDDEN_COPIES = 4
"""Of the hidden states, alive beside the feed-forward network's inner ones."""
PLAIN_INNER_COPIES = 3
"""Of a network's inner features: gate, up, and what comes of them."""
MAX_PLAIN_INNER = 6 * 132 * 128 * 128
"""Tokens times inner features below which a Hopper GPU has them all in memory: six rounds of tiles
over its cores (`octavo_kernels.gpu.hopper_gated.pays`)."""


@dataclass(frozen=True, kw_only=True)
class FitQuestion:
    gpu_bytes: int
    """As the driver counts them."""
    is_hopper: bool = False
    dtype: torch.dtype = torch.bfloat16
    kv_cache_dtype: KVCacheDType = "auto"
    scheme: Scheme | None = None
    num_ranks: int = 1
    """Over which the model is split; all that is told is of one."""
    utilization: float = 0.92
    block_size: int = 64
    max_num_seqs: int = 256
    max_step_tokens: int = 8192
    max_model_len: int | None = None
    """None: as many as the model and the pages allow."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    limit_bytes: int
    """What the engine may use."""
    weights_bytes: int
    tables_bytes: int
    activations_bytes: int
    graphs_bytes: int
    others_bytes: int
    kv_token_bytes: int
    num_kv_tokens: int
    """Kept by all layers; those of a window give theirs back. 0: the model does not fit."""
    max_model_len: int
    """Of one sequence; below what was asked for when the pages do not hold that."""
    asked_model_len: int

    @property
    def taken_bytes(self) -> int:
        return (
            self.weights_bytes
            + self.tables_bytes
            + self.activations_bytes
            + self.graphs_bytes
            + self.others_bytes
        )

    @property
    def is_enough(self) -> bool:
        return self.num_kv_tokens > 0 and self.max_model_len >= self.asked_model_len


def gpu_bytes(name: str) -> int:
    """Of a kind of GPU by name, or of a number of GiB such as 80GiB."""
    known = GPU_BYTES.get(name.lower())
    if known is not None:
        return known
    number = name.lower().removesuffix("gib")
    if number != name.lower() and number.replace(".", "", 1).isdigit():
        return int(float(number) * GIB)
    raise ConfigError(
        f"GPU {name!r} is not known: one of {', '.join(GPU_BYTES)}, or its memory, such as 80GiB"
    )


def plan_fit(config: ModelConfig, question: FitQuestion) -> Fit:
    """Raises ConfigError for a context longer than the model's, and for ranks that cannot share."""
    refuse_impossible(config, question.num_ranks)
    context_len = config.max_position_embeddings
    asked = question.max_model_len
    if asked is not None and asked > context_len:
        raise ConfigError(f"max_model_len {asked} is more than the model's context {context_len}")
    groups = kv_groups([layer.window for layer in config.layers])
    outline = Decoder(config, groups, Build(torch.device("meta"), question.dtype))
    slots = list(outline.slots())
    unpacked_bytes = _unpacked_bytes(slots, config, question)
    shape = PageShape(
        num_kv_heads=rank_kv_heads(config.num_kv_heads, question.num_ranks),
        block_size=question.block_size,
        head_dim=config.head_dim,
        dtype=question.dtype,
    )
    page_bytes = block_bytes(groups, stored_shape(shape, question.kv_cache_dtype))
    limit_bytes = int(question.gpu_bytes * (1 - DRIVER_SHARE) * question.utilization)
    fit = Fit(
        limit_bytes=limit_bytes,
        weights_bytes=_weights_bytes(slots, question),
        tables_bytes=_tables_bytes(config, question, asked or context_len, page_bytes),
        activations_bytes=_activations_bytes(config, question, unpacked_bytes),
        graphs_bytes=_graphs_bytes(config, question) + unpacked_bytes,
        others_bytes=_others_bytes(question),
        kv_token_bytes=page_bytes * len(groups) // question.block_size,
        num_kv_tokens=0,
        max_model_len=0,
        asked_model_len=asked or 1,
    )
    num_blocks = max(0, limit_bytes - fit.taken_bytes) // page_bytes
    usable = max(0, num_blocks - 1)
    windows = [group.window for group in groups]
    return replace(
        fit,
        num_kv_tokens=usable // len(groups) * question.block_size,
        max_model_len=capacity_tokens(windows, question.block_size, usable, asked or context_len),
    )


def _others_bytes(question: FitQuestion) -> int:
    return CONTEXT_BYTES + MARGIN_BYTES + (RANKS_BYTES if question.num_ranks > 1 else 0)


def _weights_bytes(slots: Sequence[Slot], question: FitQuestion) -> int:
    whole = sum(_slot_bytes(slot, question) for slot in slots)
    return rank_bytes(whole, question.num_ranks)


def _unpacked_bytes(slots: Sequence[Slot], config: ModelConfig, question: FitQuestion) -> int:
    """Of gate and up together, made 16-bit for the products of large steps where the inputs stay as
    they are (`octavo_kernels.gpu.packed_products`)."""
    linears = (_linear_scheme(slot, question.scheme) for slot in slots)
    if not any(linear and linear.weights.packing and linear.inputs is None for linear in linears):
        return 0
    inner = config.intermediate_size if config.moe is None else config.moe.intermediate_size
    return 2 * rank_bytes(inner * config.hidden_size * question.dtype.itemsize, question.num_ranks)


def _slot_bytes(slot: Slot, question: FitQuestion) -> int:
    packing = _packing(slot, question.scheme)
    if packing is None:
        return math.prod(slot.shape) * question.dtype.itemsize
    return packing.num_bytes(*slot.shape)


def _packing(slot: Slot, scheme: Scheme | None) -> Packing | None:
    linear = _linear_scheme(slot, scheme)
    return None if linear is None else linear.weights.packing


def _linear_scheme(slot: Slot, scheme: Scheme | None) -> LinearScheme | None:
    if scheme is None or not slot.is_matrix or len(slot.shape) != 2:
        return None
    return scheme.linear(slot.name.removesuffix(".weight"))


def _tables_bytes(
    config: ModelConfig, question: FitQuestion, max_model_len: int, page_bytes: int
) -> int:
    """Request table, block tables of steps, rotations, hidden states of the rows that sample, and
    what the probe holds."""
    columns = -(-max_model_len // question.block_size)
    words = question.max_num_seqs * (max_model_len + 4 * columns)
    ropes = {layer.rope for layer in config.layers if layer.rope is not None}
    rotations = sum(max_model_len * rope.rotary_dim for rope in ropes)
    hidden = 2 * question.max_num_seqs * config.hidden_size * question.dtype.itemsize
    return 4 * (words + rotations) + hidden + NUM_PROBE_BLOCKS * page_bytes + WORKSPACE_BYTES


def _multiplies_gated(config: ModelConfig, question: FitQuestion) -> bool:
    """Whether gate and up of a large step become one product with its activation."""
    share = config.intermediate_size // question.num_ranks
    is_whole = share % 128 == 0 and config.hidden_size % 64 == 0
    is_plain = question.scheme is None and not config.has_mlp_bias
    return question.is_hopper and is_plain and is_whole and question.dtype.itemsize == 2


def _token_bytes(config: ModelConfig, question: FitQuestion) -> int:
    """Alive at once for each token of a forward pass."""
    share = config.intermediate_size // question.num_ranks
    feed_forward = share if _multiplies_gated(config, question) else PLAIN_INNER_COPIES * share
    if config.moe is not None:
        # What each expert of the token makes inside, and what it adds.
        inner = config.moe.intermediate_size // question.num_ranks
        experts = config.moe.num_experts_per_token * (inner + config.hidden_size)
        feed_forward = max(feed_forward, experts)
    return (feed_forward + HIDDEN_COPIES * config.hidden_size) * question.dtype.itemsize


def _activations_bytes(config: ModelConfig, question: FitQuestion, unpacked_bytes: int) -> int:
    """Of the largest step: its forward pass, or sampling all rows with every option on."""
    forward = question.max_step_tokens * _token_bytes(config, question) + unpacked_bytes
    return max(forward, SAMPLING_BYTES * question.max_num_seqs * config.vocab_size)


def _graphs_bytes(config: ModelConfig, question: FitQuestion) -> int:
    """The largest captured step with prompts, and the largest of decodes with its logits."""
    logits = config.vocab_size * question.dtype.itemsize
    if question.num_ranks > 1:
        logits += rank_bytes(logits, question.num_ranks)  # a rank's own, beside those of all
    tokens = LARGEST_GRAPH_TOKENS + question.max_num_seqs
    captured = tokens * _token_bytes(config, question) + question.max_num_seqs * logits
    if not _multiplies_gated(config, question):
        return captured
    # Smaller steps have gate and up in memory, which what the largest have left does not hold.
    share = config.intermediate_size // question.num_ranks
    plain_tokens = min(LARGEST_GRAPH_TOKENS, MAX_PLAIN_INNER // share)
    plain = PLAIN_INNER_COPIES * share + HIDDEN_COPIES * config.hidden_size
    return captured + plain_tokens * plain * question.dtype.itemsize

"""Whether a model can fit at all, told before anything is loaded. Pure arithmetic, no torch.

A verdict is given only where it is sure: weights and one sequence of the context that was asked for
against the memory that there is. What the largest step takes beside them is the engine's to measure
when it starts; it is left out here, so that nothing is refused that would have run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo_engine import memory_facts as facts
from octavo_engine.fetch.progress import gib


@dataclass(frozen=True, kw_only=True)
class Shape:
    num_layers: int
    num_kv_heads: int
    head_dim: int
    context_len: int
    has_windows: bool
    """Some layers give pages back, so that tokens cannot be counted by one layer's."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """What the settings give a replica. Bytes; of one rank where there are several."""

    memory_bytes: int | None
    """Of one accelerator, or the pod's limit on a CPU; None: not known."""
    pages_bytes: int | None
    """None: all that is left; set on a CPU."""
    utilization: float
    num_ranks: int
    kv_itemsize: int
    """Of a number in the pages."""
    is_cpu: bool

    @property
    def usable_bytes(self) -> int | None:
        if self.memory_bytes is None:
            return None
        if self.is_cpu:
            return self.memory_bytes
        return int(self.memory_bytes * self.utilization) - facts.CONTEXT_BYTES


class FitPlan(msgspec.Struct, frozen=True, rename="camel"):
    """What goes into the status. Of one rank, where the model is split over several."""

    weights_bytes: int
    kv_token_bytes: int
    context_len: int
    """What the model was made for."""
    kv_tokens: int | None = None
    """Tokens that the pages can hold at most; None where the memory is not known, or some layers
    hold less than others."""
    max_model_len: int | None = None
    """The largest context of one sequence."""


def read_shape(raw: Mapping[str, Any]) -> Shape | None:
    """From a config.json; None for an architecture that does not speak of these in the usual words.

    Not by transformers' classes: they would load torch, which takes longer than most fetches.
    """
    text = raw.get("text_config") or raw
    try:
        num_heads = text["num_attention_heads"]
        windows = [kind for kind in text.get("layer_types") or () if kind != "full_attention"]
        return Shape(
            num_layers=text["num_hidden_layers"],
            num_kv_heads=text.get("num_key_value_heads") or num_heads,
            head_dim=text.get("head_dim") or text["hidden_size"] // num_heads,
            context_len=text["max_position_embeddings"],
            has_windows=bool(windows or text.get("sliding_window")),
        )
    except (KeyError, TypeError, ZeroDivisionError):
        return None


def plan(shape: Shape, weights_bytes: int, room: Room) -> FitPlan:
    """weights_bytes: of all ranks together, as the files hold them."""
    kv_heads = facts.rank_kv_heads(shape.num_kv_heads, room.num_ranks)
    token_bytes = facts.kv_token_bytes(shape.num_layers, kv_heads, shape.head_dim, room.kv_itemsize)
    weights = facts.rank_bytes(weights_bytes, room.num_ranks)
    usable_bytes = room.usable_bytes
    pages_bytes = room.pages_bytes
    if pages_bytes is None and usable_bytes is not None:
        pages_bytes = max(0, usable_bytes - weights)
    kv_tokens = None
    if pages_bytes is not None and not shape.has_windows:
        kv_tokens = pages_bytes // token_bytes
    return FitPlan(
        weights_bytes=weights,
        kv_token_bytes=token_bytes,
        context_len=shape.context_len,
        kv_tokens=kv_tokens,
        max_model_len=None if kv_tokens is None else min(kv_tokens, shape.context_len),
    )


def why_not(plan: FitPlan, asked_len: int | None, block_size: int, room: Room) -> str | None:
    """The sentence about a model that cannot fit, with the numbers and what would; else None."""
    wanted_len = asked_len or block_size
    pages_bytes = room.pages_bytes or wanted_len * plan.kv_token_bytes
    if plan.kv_tokens is not None and plan.kv_tokens < wanted_len:
        held = f"the pages hold {plan.kv_tokens} tokens, {wanted_len} are asked for"
        halved = room.kv_itemsize > 1 and 2 * plan.kv_tokens >= wanted_len
        remedies = ("kvCacheDtype fp8 or " if halved else "") + _remedies(plan, wanted_len, room)
        return f"{_numbers(plan, room)}: {held}; {remedies}"
    usable_bytes = room.usable_bytes
    if usable_bytes is not None and plan.weights_bytes + pages_bytes > usable_bytes:
        return (
            f"{_numbers(plan, room)} and {gib(pages_bytes)} of pages: too much; "
            f"{_remedies(plan, wanted_len, room)}"
        )
    return None


def _numbers(plan: FitPlan, room: Room) -> str:
    place = "a limit" if room.is_cpu else f"{room.num_ranks} rank(s) with"
    memory = "unknown memory" if room.usable_bytes is None else gib(room.usable_bytes)
    of = " of" if room.is_cpu else ""
    return f"weights of {gib(plan.weights_bytes)} in {place}{of} {memory}"


def _remedies(plan: FitPlan, wanted_len: int, room: Room) -> str:
    """What would fit."""
    needed = plan.weights_bytes + wanted_len * plan.kv_token_bytes
    if room.is_cpu:
        return (
            f"a memory limit above {gib(needed)}, "
            f"cpuKvCacheGiB of {wanted_len * plan.kv_token_bytes / 2**30:.2f} or a smaller "
            "maxModelLen would fit"
        )
    assert room.usable_bytes is not None
    found = [f"maxModelLen {plan.kv_tokens}"] if (plan.kv_tokens or 0) >= 16 else []
    ranks = -(-needed * room.num_ranks // max(1, room.usable_bytes))
    num_ranks = 1 << (max(2, ranks) - 1).bit_length()
    num_ranks = max(num_ranks, 2 * room.num_ranks)
    if num_ranks <= facts.MAX_RANKS:
        found.append(f"tensorParallelSize {num_ranks}")
    found.append("a checkpoint of fewer bits a weight")
    return f"{' or '.join(found)} would fit"

"""What the kernels need besides tensors of numbers: a step's rows and pages, how rows are sampled.

Plain frozen data, filled by the runner once a step and shared by all layers that keep the same
positions. Knows no model and no request.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from octavo_kernels.gpu.schedule import AttentionSchedule
    from octavo_kernels.reference.decode_plan import DecodePlan


@dataclass(frozen=True, kw_only=True)
class AttentionMetadata:
    """One step of one KV group: T tokens in R rows; the rows that decode come first.

    A row's last query is its last visible token: query i of a row with n queries stands at
    position `seq_len - n + i`. Device tensors and host fields describe the same step; a captured
    decode step reads only the tensors, everything else may use the host lists.
    """

    query_start: torch.Tensor
    """[R + 1] int32: tokens query_start[r] to query_start[r + 1] belong to row r."""
    seq_lens: torch.Tensor
    """[R] int32: tokens visible to the row's last query, this step's included; 0: padding row."""
    block_table: torch.Tensor
    """[R, max_blocks] int32: entry i of a row is the block of its positions from i * block_size."""
    positions: torch.Tensor
    """[T] int64: position of each token in its sequence."""
    num_rows: int
    num_decode_rows: int
    """Rows of phase decode, one query token each; they are rows 0 to num_decode_rows - 1."""
    max_query_len: int
    max_seq_len: int
    block_size: int
    """Tokens in a page; a power of two from 16 to 1024."""
    seq_lens_host: list[int]
    query_lens_host: list[int]
    schedule: "AttentionSchedule | None" = None
    """Filled by `prepare_attention`: the step cut into pieces of work. None: cut in each layer."""
    decode_plan: "DecodePlan | None" = None
    """Filled by `prepare_attention` on a CPU: the decode rows in buckets of like length."""


PREFILL_TILE = 128
"""Queries in a tile of prefill work."""
PAGE_MAX = 448.0
"""The largest number of e4m3: what pages of 8 bits hold at most, in units of the scale."""


@dataclass(frozen=True)
class KVScales:
    """Of one layer's pages in e4m3: a key or value is the stored number times its head's scale.

    Numbers beyond PAGE_MAX scales are stored as the largest one.
    """

    k: torch.Tensor
    """[Hkv] float32."""
    v: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class AttentionRule:
    """What a layer does with queries and keys, as `ops.paged_attention` says of its arguments."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    scales: KVScales | None = None


@dataclass(frozen=True, kw_only=True)
class SamplingTensors:
    """How each of R rows is sampled; on the logits' device. Filters apply in the fields' order."""

    temperature: torch.Tensor
    """[R] float32; 0 is greedy: the most likely token, the lowest id on ties."""
    top_k: torch.Tensor
    """[R] int32; 0 keeps all, 1 is greedy; tokens tied with the k-th are kept too."""
    top_p: torch.Tensor
    """[R] float32 in (0, 1]; keeps the fewest most likely tokens whose share of what top-k left
    reaches it, and those tied with the last of them."""
    min_p: torch.Tensor
    """[R] float32 in [0, 1); drops tokens less likely than min_p times the most likely one."""
    seeds: torch.Tensor
    """[R] int64."""
    positions: torch.Tensor
    """[R] int64: position that the sampled token will have in its sequence."""
    all_greedy: bool
    """Host's knowledge that no row draws; lets the kernel skip noise and filters."""
    any_filter: bool
    """Host's knowledge that some row uses top-k, top-p or min-p."""

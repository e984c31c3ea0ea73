"""What memory holds of a model: the facts that every plan of it shares. Pure; no torch.

    fetch.plan    what surely cannot fit, from a config.json and the size of files
    fit           what the engine would take of a GPU, from a model's config
    cuda.memory   what it takes, measured

The numbers were measured on an H200.
"""

import math

MAX_RANKS = 8
"""Of one model: they live on one node."""
GIB = 2**30
MIB = 2**20
CONTEXT_BYTES = 760 * MIB
"""The CUDA context and libraries."""
RANKS_BYTES = 860 * MIB
"""What each of several ranks has beside that: NCCL's channels and the exchange's mailboxes. Two
ranks of hidden sizes 4,096 and 8,192 had 840 and 890."""
MARGIN_BYTES = 512 * MIB
"""For what the allocator loses to fragmentation and libraries take later."""
NUM_PROBE_BLOCKS = 2
"""Pages that a layer has while memory is measured."""
LARGEST_GRAPH_TOKENS = 2048
"""Of a captured step with prompts: larger ones keep a GPU busy for longer than their launches take.
"""
DRIVER_SHARE = 0.0043
"""Of a GPU's memory as the driver counts it, that CUDA does not show to programs: 139.80 of 140.40
GiB."""


def kv_token_bytes(num_layers: int, num_kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Of keys and values of one token, on one rank."""
    return 2 * num_layers * num_kv_heads * head_dim * itemsize


def rank_kv_heads(num_kv_heads: int, num_ranks: int) -> int:
    """Ranks beyond the heads have one each, some the same."""
    return max(1, num_kv_heads // num_ranks)


def rank_bytes(num_bytes: int, num_ranks: int) -> int:
    """A rank's share of the weights."""
    return math.ceil(num_bytes / num_ranks)


def kv_itemsize(itemsize: int, kv_cache_dtype: str) -> int:
    """Bytes of a number in the pages; itemsize: of one that the model computes with."""
    return 1 if kv_cache_dtype == "fp8" else itemsize

"""Which part of each dimension of a model's matrices a rank keeps. Pure; knows no process.

Attention is shared by heads, a feed-forward network by its inner dimension, embedding and head by
the vocabulary. Where there are fewer KV heads than ranks, several ranks keep the same one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo_engine.errors import ConfigError
from octavo_engine.memory_facts import MAX_RANKS
from octavo_engine.model_config import ModelConfig


@dataclass(frozen=True)
class Share:
    """A rank's part of one dimension of a whole tensor."""

    runs: tuple[tuple[int, int], ...]
    """(first, length) of neighbours that are kept, in this order."""
    num_padding: int = 0
    """Copies of the whole's last entry behind them, which nobody reads: only to fill a size."""

    @property
    def size(self) -> int:
        return sum(length for _, length in self.runs) + self.num_padding

    def take(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        """The share of `whole`; a view where it is one run."""
        parts = [whole.narrow(dim, first, length) for first, length in self.runs]
        if self.num_padding:
            last = whole.narrow(dim, whole.shape[dim] - 1, 1)
            parts.append(last.expand(*_repeats(whole.dim(), dim, self.num_padding)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def is_cut_at(self, block_size: int) -> bool:
        """Whether it holds whole blocks of neighbours alone, but for a short last one."""
        *before, last = self.runs
        if self.num_padding or any(length % block_size for _, length in before):
            return False
        return all(first % block_size == 0 for first, _ in (*before, last))

    def in_blocks(self, block_size: int) -> "Share":
        """Which blocks it holds, where it is cut at them."""
        return Share(
            tuple((first // block_size, -(-length // block_size)) for first, length in self.runs)
        )

    def behind(self, offset: int) -> "Share":
        """The same share of a matrix that begins at `offset` of a larger one."""
        return Share(tuple((offset + first, length) for first, length in self.runs))


def _repeats(num_dims: int, dim: int, count: int) -> list[int]:
    """For `expand`: -1 keeps a dimension."""
    return [count if at == dim else -1 for at in range(num_dims)]


def even_share(size: int, rank: int, num_ranks: int) -> Share:
    assert size % num_ranks == 0, f"{size} is not divisible by {num_ranks}"
    length = size // num_ranks
    return Share(((rank * length, length),))


def vocabulary_share(vocab_size: int, rank: int, num_ranks: int) -> Share:
    """Equal shares, the last ones padded."""
    length = -(-vocab_size // num_ranks)
    first = min(rank * length, vocab_size)
    num_kept = min(length, vocab_size - first)
    return Share(((first, num_kept),), length - num_kept)


def joined(shares: Sequence[Share]) -> Share:
    return Share(tuple(run for share in shares for run in share.runs))


def stacked(shares: Sequence[tuple[Share, int]]) -> Share:
    """Of matrices that a checkpoint holds one below the other: each with its whole size."""
    found = []
    offset = 0
    for share, whole_size in shares:
        found.append(share.behind(offset))
        offset += whole_size
    return joined(found)


@dataclass(frozen=True)
class HeadShares:
    """What a rank keeps of the attention's projections."""

    num_q_heads: int
    num_kv_heads: int
    q_heads: Share
    kv_heads: slice
    q: Share
    """Rows of the projection; a head has head_dim of them."""
    kv: Share


def head_shares(config: ModelConfig, rank: int, num_ranks: int) -> HeadShares:
    num_q = config.num_heads // num_ranks
    num_kv = max(1, config.num_kv_heads // num_ranks)
    first_kv = rank * config.num_kv_heads // num_ranks
    dim = config.head_dim
    return HeadShares(
        num_q_heads=num_q,
        num_kv_heads=num_kv,
        q_heads=Share(((rank * num_q, num_q),)),
        kv_heads=slice(first_kv, first_kv + num_kv),
        q=Share(((rank * num_q * dim, num_q * dim),)),
        kv=Share(((first_kv * dim, num_kv * dim),)),
    )


def refuse_impossible(config: ModelConfig, num_ranks: int) -> None:
    """Raises ConfigError with the numbers where the model cannot be shared by so many ranks."""
    if not 1 <= num_ranks <= MAX_RANKS:
        raise ConfigError(f"tensor_parallel_size {num_ranks} is not between 1 and {MAX_RANKS}")
    sizes = {"attention heads": config.num_heads}
    if any(not layer.is_moe for layer in config.layers):
        sizes["inner features of its feed-forward networks"] = config.intermediate_size
    if config.moe is not None:
        sizes["inner features of its experts"] = config.moe.intermediate_size
    for what, size in sizes.items():
        if size % num_ranks:
            raise ConfigError(
                f"tensor_parallel_size {num_ranks} cannot share the model's {size} {what}: "
                f"{size} is not a multiple of {num_ranks}"
            )
    num_kv = config.num_kv_heads
    if num_kv % num_ranks and num_ranks % num_kv:
        raise ConfigError(
            f"tensor_parallel_size {num_ranks} cannot share the model's {num_kv} key-value heads: "
            f"neither of {num_kv} and {num_ranks} is a multiple of the other"
        )

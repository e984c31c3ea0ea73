"""What of a group's calls goes over memory that the GPUs of one host map from each other.

Messages small enough to be bound by launches; NCCL is as fast with larger ones, which are bound by
the links.
"""

from dataclasses import dataclass

import torch

from octavo_kernels.gpu.all_reduce import Following, LookUp, all_reduce
from octavo_kernels.gpu.gather import (
    PIECE_LEN,
    ROWS_A_PIECE,
    num_gather_pieces,
    num_word_pieces,
)
from octavo_kernels.gpu.mailbox import Mailbox, open_mailbox
from octavo_kernels.gpu.word_sum import can_pair, word_all_reduce

MAX_WORD_SUM_TOKENS = 32
"""Up to so many tokens a sum's numbers carry their exchange's number with them: see `word_sum`. Two
H200s, sum and norm of 1 / 32 / 64 tokens: 3.28 / 4.50 / 5.96 us, by flags 4.03 / 4.77 / 5.65."""
MAX_SUM_TOKENS = 256
MAX_SUM_TOKENS_OF_TWO = 1024
"""Two ranks send each other no more in one launch than by any other way; more would send each row
to all the others, where a ring sends it but twice."""
MAX_GATHER_PIECES = 512
"""32 rows of half of a vocabulary of 131,072: 8 MiB for each rank and half."""
MAX_WORD_ROWS = 4096


def max_sum_tokens(num_ranks: int) -> int:
    return MAX_SUM_TOKENS_OF_TWO if num_ranks == 2 else MAX_SUM_TOKENS


@dataclass(frozen=True)
class Symmetric:
    """A rank's mailboxes, one for each kind of message."""

    sums: Mailbox
    word_sums: Mailbox | None
    """For few tokens."""
    rows: Mailbox
    words: Mailbox

    def can_sum(self, x: torch.Tensor, num_tokens: int) -> bool:
        """x: [N, H], of which num_tokens rows are summed."""
        is_kind = (x.shape[1], x.dtype) == (self.sums.width, self.sums.inbox.dtype)
        return is_kind and x.stride(1) == 1 and num_tokens <= self.sums.max_pieces

    def all_reduce(
        self,
        x: torch.Tensor,
        following: Following | None = None,
        look_up: LookUp | None = None,
        **halves: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `octavo_kernels.gpu.all_reduce`, halves included, of what `can_sum`."""
        num_tokens = len(x) if look_up is None else len(look_up.token_ids)
        few = self.word_sums
        given = [x] if following is None else [x, following.weight, following.residual]
        if few is None or num_tokens > few.max_pieces or not all(map(can_pair, given)):
            return all_reduce(x, self.sums, following, look_up, **halves)
        return word_all_reduce(x, few, following, look_up, **halves)

    def can_gather(self, x: torch.Tensor) -> bool:
        is_kind = x.dtype == self.rows.inbox.dtype and x.stride(1) == 1
        return is_kind and num_gather_pieces(*x.shape) <= self.rows.max_pieces

    def can_overwrite(self, x: torch.Tensor) -> bool:
        is_kind = x.dtype == self.words.inbox.dtype and x.dim() == 1 and x.is_contiguous()
        return is_kind and self.can_exchange(len(x))

    def can_exchange(self, num_rows: int) -> bool:
        """Whether a word for each of so many rows fits."""
        return num_word_pieces(num_rows) <= self.words.max_pieces


def open_symmetric(
    group_name: str,
    rank: int,
    size: int,
    hidden_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Symmetric:
    """As `open_mailbox`, with its errors."""

    def opened(max_pieces: int, width: int, dtype: torch.dtype) -> Mailbox:
        return open_mailbox(
            group_name, rank, size,
            max_pieces=max_pieces, width=width, dtype=dtype, device=device,
        )  # fmt: skip

    few = None
    if hidden_size % 2 == 0:
        few = opened(MAX_WORD_SUM_TOKENS, hidden_size // 2, torch.int64)
    return Symmetric(
        sums=opened(max_sum_tokens(size), hidden_size, dtype),
        word_sums=few,
        rows=opened(MAX_GATHER_PIECES, PIECE_LEN, dtype),
        words=opened(num_word_pieces(MAX_WORD_ROWS), ROWS_A_PIECE, torch.int64),
    )

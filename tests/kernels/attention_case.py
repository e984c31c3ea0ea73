"""Steps of paged attention with scattered pages, and a dense oracle that knows nothing of pages."""

from dataclasses import dataclass

import torch

from octavo_kernels.gpu.attention_parts import AttentionOptions
from octavo_kernels.metadata import AttentionMetadata


@dataclass(frozen=True)
class AttentionCase:
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    metadata: AttentionMetadata
    dense_keys: list[torch.Tensor]
    """For each row [seq_len, Hkv, D]."""
    dense_values: list[torch.Tensor]

    def oracle(self, options: AttentionOptions) -> torch.Tensor:
        """[T, Hq, D] in float32 from dense rows, one at a time."""
        rows = self.q.split(self.metadata.query_lens_host)
        parts = []
        for q, keys, values in zip(rows, self.dense_keys, self.dense_values, strict=True):
            group = q.shape[1] // keys.shape[1]
            wide_keys = keys.float().repeat_interleave(group, 1)
            logits = torch.einsum("qhd,khd->hqk", q.float(), wide_keys) * options.scale
            if options.softcap is not None:
                logits = options.softcap * torch.tanh(logits / options.softcap)
            key = torch.arange(keys.shape[0], device=q.device)
            query = keys.shape[0] - q.shape[0] + torch.arange(q.shape[0], device=q.device)
            hidden = key[None] > query[:, None]
            if options.window is not None:
                hidden |= key[None] <= query[:, None] - options.window
            logits = logits.masked_fill(hidden, -torch.inf)
            if options.sinks is not None:
                extra = options.sinks.float()[:, None, None].expand(-1, q.shape[0], 1)
                logits = torch.cat([logits, extra], dim=-1)
            weights = logits.softmax(-1)[..., : keys.shape[0]]
            wide_values = values.float().repeat_interleave(group, 1)
            parts.append(torch.einsum("hqk,khd->qhd", weights, wide_values))
        return torch.cat(parts)


def make_case(
    query_lens: list[int],
    seq_lens: list[int],
    *,
    num_decode_rows: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    generator: torch.Generator,
    window: int | None = None,
) -> AttentionCase:
    """Random rows in random pages; pages of no row hold NaN; block 0 is the null block.

    With a window, blocks that have left it for all of a row's queries are block 0 in the table.
    """
    device = generator.device
    num_blocks = [-(-length // block_size) for length in seq_lens]
    order = torch.randperm(sum(num_blocks) + 2, generator=generator, device=device) + 1
    shape = (len(order) + 1, num_kv_heads, block_size, head_dim)
    caches = torch.full((2, *shape), float("nan"), device=device, dtype=dtype)
    caches[:, 0] = 0
    table = torch.zeros(len(seq_lens), max(num_blocks), dtype=torch.int32, device=device)
    keys, values, used = [], [], 0
    for row, length in enumerate(seq_lens):
        blocks = order[used : used + num_blocks[row]]
        used += num_blocks[row]
        table[row, : num_blocks[row]] = blocks
        pages = torch.randn(2, len(blocks), *shape[1:], generator=generator, device=device)
        caches[:, blocks] = pages.to(dtype)
        dense = caches[:, blocks].transpose(2, 3).reshape(2, -1, num_kv_heads, head_dim)
        keys.append(dense[0, :length])
        values.append(dense[1, :length])
        if window is not None:
            first_visible = max(0, length - query_lens[row] - window + 1)
            table[row, : first_visible // block_size] = 0
    starts = torch.tensor([0, *query_lens], device=device).cumsum(0)
    positions = [torch.arange(s - q, s) for q, s in zip(query_lens, seq_lens, strict=True)]
    metadata = AttentionMetadata(
        query_start=starts.int(),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
        block_table=table,
        positions=torch.cat(positions).to(device),
        num_rows=len(seq_lens),
        num_decode_rows=num_decode_rows,
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        block_size=block_size,
        seq_lens_host=seq_lens,
        query_lens_host=query_lens,
    )
    q = torch.randn(sum(query_lens), num_q_heads, head_dim, generator=generator, device=device)
    return AttentionCase(q.to(dtype), caches[0], caches[1], metadata, keys, values)

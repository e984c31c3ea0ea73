"""Paged attention at the heads of an 8B model: decode, prefill and mixed steps."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tests.bench.kernels.harness import Case

from octavo_kernels import AttentionMetadata, KVScales, paged_attention, prepare_attention

NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128
SCALE = HEAD_DIM**-0.5


@dataclass(frozen=True)
class Step:
    name: str
    query_lens: list[int]
    seq_lens: list[int]
    num_decode_rows: int


def decode(rows: int, length: int) -> Step:
    return Step(f"decode B={rows} ctx={length}", [1] * rows, [length] * rows, rows)


def prefill(rows: int, queries: int, length: int) -> Step:
    name = f"prefill {rows}x{queries} ctx={length}"
    return Step(name, [queries] * rows, [length] * rows, 0)


STEPS = [
    *(decode(1, length) for length in (128, 2048, 8192)),
    decode(8, 2048),
    decode(16, 2048),
    *(decode(32, length) for length in (512, 2048, 8192)),
    decode(64, 2048),
    *(decode(128, length) for length in (512, 2048)),
    *(decode(256, length) for length in (128, 512, 2048)),
    prefill(16, 512, 512),
    prefill(4, 2048, 2048),
    prefill(2, 4096, 4096),
    prefill(1, 8192, 8192),
    prefill(4, 512, 4096),
    Step("mixed 255 decodes ctx=1024 + prefill 1024", [1] * 255 + [1024], [1024] * 256, 255),
]


def make_metadata(step: Step, page: int, num_blocks: int) -> AttentionMetadata:
    """Pages in random order; rows share none."""
    counts = [-(-length // page) for length in step.seq_lens]
    order = torch.randperm(num_blocks, device="cuda").int()
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32, device="cuda")
    used = 0
    for row, count in enumerate(counts):
        table[row, :count] = order[used : used + count]
        used += count
    pairs = zip(step.query_lens, step.seq_lens, strict=True)
    positions = torch.cat([torch.arange(s - q, s) for q, s in pairs])
    metadata = AttentionMetadata(
        query_start=torch.tensor([0, *step.query_lens]).cumsum(0).int().cuda(),
        seq_lens=torch.tensor(step.seq_lens, dtype=torch.int32).cuda(),
        block_table=table,
        positions=positions.cuda(),
        num_rows=len(counts),
        num_decode_rows=step.num_decode_rows,
        max_query_len=max(step.query_lens),
        max_seq_len=max(step.seq_lens),
        block_size=page,
        seq_lens_host=step.seq_lens,
        query_lens_host=step.query_lens,
    )
    return prepare_attention(metadata, num_q_heads=NUM_Q_HEADS, num_kv_heads=NUM_KV_HEADS)


def step_flops(step: Step) -> float:
    pairs = zip(step.query_lens, step.seq_lens, strict=True)
    return sum(4 * NUM_Q_HEADS * HEAD_DIM * (q * s - q * (q - 1) / 2) for q, s in pairs)


def step_case(step: Step, page: int, *, is_narrow: bool = False) -> Case:
    """is_narrow: over pages in e4m3."""
    num_blocks = sum(-(-length // page) for length in step.seq_lens)
    kv_bytes = sum(step.seq_lens) * NUM_KV_HEADS * HEAD_DIM * 2 * (1 if is_narrow else 2)
    q_bytes = 2 * sum(step.query_lens) * NUM_Q_HEADS * HEAD_DIM * 2
    # Prefill reads its keys from the L2 cache anyway.
    sets = 4 if step.num_decode_rows == 0 else max(2, min(16, int(1.2e9 / kv_bytes) + 1))
    shape = (sets, 2, num_blocks, NUM_KV_HEADS, page, HEAD_DIM)
    caches = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    scales = None
    if is_narrow:
        caches = caches.to(torch.float8_e4m3fn)
        scales = KVScales(*torch.ones(2, NUM_KV_HEADS, device="cuda"))
    num_tokens = sum(step.query_lens)
    q = torch.randn(num_tokens, NUM_Q_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    metadata = make_metadata(step, page, num_blocks)

    def launch(i: int) -> object:
        return paged_attention(q, caches[i, 0], caches[i, 1], metadata, scale=SCALE, scales=scales)

    kind = " e4m3" if is_narrow else ""
    return Case(
        f"{step.name} page={page}{kind}", launch, sets, kv_bytes + q_bytes, step_flops(step)
    )


def cases() -> Iterator[Case]:
    for step in STEPS:
        yield step_case(step, 64, is_narrow=True)
    for page in (64, 16):
        for step in STEPS:
            yield step_case(step, page)

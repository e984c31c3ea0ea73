"""Paged attention of every group of query heads, of many widths and pages, and far into a row."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from tests.kernels.attention_case import AttentionCase, make_case
from tests.kernels.conftest import ON_GPU

from octavo_kernels.gpu import paged_attention as wrapper
from octavo_kernels.gpu.attention_parts import AttentionOptions
from octavo_kernels.gpu.prefill_attention import PrefillConfig
from octavo_kernels.gpu.schedule import AttentionSchedule, cut_tiles, plan_decode

Check = Callable[..., None]
# Each number of query heads that share a KV head, with a width and a page size.
SHAPES = [
    (1, 64, 16),
    (2, 72, 32),
    (3, 80, 64),
    (4, 96, 128),
    (5, 104, 256),
    (6, 112, 512),
    (7, 120, 1024),
    (8, 128, 16),
    (9, 136, 32),
    (10, 144, 64),
    (11, 160, 128),
    (12, 176, 256),
    (13, 192, 512),
    (14, 224, 1024),
    (15, 240, 16),
    (16, 256, 1024),
]
FACTOR = 1.5
"""The weights of keys are rounded to the dtype before the second product."""


NUM_ITEMS = 2
"""Beyond one a row: under the interpreter each program costs time, also one without work."""


def attend(case: AttentionCase, options: AttentionOptions) -> torch.Tensor:
    metadata, num_decodes = case.metadata, case.metadata.num_decode_rows
    decode = None
    if num_decodes:
        decode = plan_decode(
            metadata.seq_lens[:num_decodes], num_kv_heads=case.k_cache.shape[1],
            window=options.window, target_items=NUM_ITEMS,
        )  # fmt: skip
    tiles = torch.tensor(cut_tiles(metadata), dtype=torch.int32, device=case.q.device)
    schedule = AttentionSchedule(options.window, decode, tiles if len(tiles) else None)
    metadata = dataclasses.replace(metadata, schedule=schedule)
    return wrapper.paged_attention(
        case.q, case.k_cache, case.v_cache, metadata, scale=options.scale, window=options.window
    )


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the interpreter, which computes what is masked too."""
    if not ON_GPU:
        config = PrefillConfig(block_m=16, block_n=16, use_tma=False, num_warps=4, num_stages=2)
        monkeypatch.setattr(wrapper, "prefill_config", lambda *_, **__: config)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("group", "head_dim", "page"), SHAPES)
def test_a_mixed_step_of_each_group_width_and_page(
    group: int, head_dim: int, page: int, generator: torch.Generator, assert_close: Check
) -> None:
    dtype = torch.bfloat16 if ON_GPU else torch.float32
    options = AttentionOptions(scale=head_dim**-0.5, window=17 if group % 2 else None)
    num_kv_heads = 2 if group <= 4 else 1
    case = make_case(
        [1, 1, 9], [1, 33, 40], num_decode_rows=2, num_q_heads=num_kv_heads * group,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim, block_size=page, dtype=dtype, generator=generator,
        window=options.window,
    )  # fmt: skip
    assert_close(attend(case, options), case.oracle(options), dtype, FACTOR)


@pytest.mark.parametrize(("num_queries", "num_decodes"), [(1, 1), (3, 0)], ids=["decode", "prompt"])
def test_the_end_of_a_row_of_a_hundred_thousand_keys(
    num_queries: int, num_decodes: int, generator: torch.Generator, assert_close: Check
) -> None:
    """All of such a row takes the interpreter half a minute: see test_attention_on_gpu."""
    options = AttentionOptions(scale=0.125, window=200)
    case = make_case(
        [num_queries], [100_000], num_decode_rows=num_decodes, num_q_heads=2, num_kv_heads=1,
        head_dim=64, block_size=1024, dtype=torch.float32, generator=generator, window=200,
    )  # fmt: skip
    assert_close(attend(case, options), case.oracle(options), torch.float32, FACTOR)

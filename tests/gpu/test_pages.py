"""Pages copied on the device, and to the host's memory and back."""

import pytest
import torch

from octavo_engine.batch import BlockCopy, KVGroup
from octavo_engine.runner.kv_cache import KVCache, PageShape

NUM_BLOCKS = 120
CYCLES_OF_WORK = 100_000_000
"""Some 50 ms: what is copied is far from written when the copy is asked for."""
DTYPES = [torch.bfloat16, torch.float8_e4m3fn]


def cache(dtype: torch.dtype, num_host_blocks: int = 0) -> KVCache:
    return KVCache(
        (KVGroup((0, 1, 2, 3), None),),
        PageShape(num_kv_heads=8, block_size=64, head_dim=128, dtype=dtype),
        num_blocks=NUM_BLOCKS,
        num_host_blocks=num_host_blocks,
        device=torch.device("cuda", torch.cuda.current_device()),
    )


def raw(held: KVCache) -> list[torch.Tensor]:
    return [pages.view(torch.uint8) for layer in held.layers for pages in (layer.k, layer.v)]


def fill(held: KVCache) -> list[torch.Tensor]:
    """Other numbers in each page of each layer, written on the device a while after the return."""
    wanted = [torch.randint_like(pages, 100) for pages in raw(held)]
    torch.cuda._sleep(CYCLES_OF_WORK)
    for pages, numbers in zip(raw(held), wanted, strict=True):
        pages.copy_(numbers)
    return wanted


@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_come_back_from_the_host_as_they_were(dtype: torch.dtype) -> None:
    held = cache(dtype, num_host_blocks=100)
    wanted = fill(held)
    out = [BlockCopy(block + 1, (block * 37) % 100) for block in range(100)]
    held.swap_out(out)
    for pages in raw(held):
        pages.zero_()
    held.swap_in([BlockCopy(copy.dst, copy.src) for copy in out])
    for pages, numbers in zip(raw(held), wanted, strict=True):
        assert torch.equal(pages[1:101], numbers[1:101])
        assert not pages[101:].any()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_copy_on_the_device_is_not_waited_for(dtype: torch.dtype) -> None:
    held = cache(dtype)
    wanted = fill(held)
    torch.cuda.set_sync_debug_mode("error")
    try:
        held.copy([BlockCopy(1, 50), BlockCopy(2, 51)])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for pages, numbers in zip(raw(held), wanted, strict=True):
        assert torch.equal(pages[50:52], numbers[1:3])

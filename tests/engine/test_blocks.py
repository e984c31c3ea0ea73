"""The pool of pages and the hash chain."""

import pytest

from octavo_engine.scheduling.blocks import BlockPool
from octavo_engine.scheduling.prefix import extend_chain, root_digest


def test_empty_pages_go_first_then_the_prefix_left_alone_longest():
    pool = BlockPool(6)
    old, young, plain = pool.allocate(3)
    pool.register(0, b"old", old)
    pool.register(0, b"young", young)
    pool.release([old])
    pool.release([young])
    pool.release([plain])
    order = pool.allocate(5)
    assert order[0] == plain
    assert order[-2:] == [old, young]


def test_a_cached_page_is_found_until_it_is_handed_out_again():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.register(0, b"x", block)
    pool.release([block])
    assert pool.find(0, b"x") == block
    assert pool.num_cached == 1
    pool.allocate(1)
    assert pool.find(0, b"x") is None
    assert pool.num_cached == 0


def test_a_touched_page_is_not_handed_out():
    pool = BlockPool(3)
    block, other = pool.allocate(2)
    pool.register(0, b"x", block)
    pool.release([other, block])
    pool.touch(block)
    assert pool.allocate(1) == [other]
    with pytest.raises(ValueError, match="1 pages asked for, 0 are free"):
        pool.allocate(1)
    pool.check_integrity([block, other])


def test_a_shared_page_is_free_after_its_last_owner():
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.touch(block)
    pool.release([block])
    assert pool.num_used == 1
    pool.release([block])
    assert pool.num_used == 0
    with pytest.raises(ValueError, match=f"page {block} was given back twice"):
        pool.release([block])


def test_groups_do_not_find_each_others_pages():
    pool = BlockPool(4, num_groups=2)
    (block,) = pool.allocate(1)
    pool.register(0, b"x", block)
    assert pool.find(1, b"x") is None


def test_of_equal_pages_the_first_stays_known():
    pool = BlockPool(4)
    first, second = pool.allocate(2)
    pool.register(0, b"x", first)
    pool.register(0, b"x", second)
    assert pool.find(0, b"x") == first
    pool.check_integrity([first, second])


def test_integrity_names_the_page_that_does_not_add_up():
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    with pytest.raises(AssertionError, match=f"page {blocks[1]}: 1 references, its owners count 0"):
        pool.check_integrity(blocks[:1])
    with pytest.raises(AssertionError, match="outside the pool"):
        pool.check_integrity([*blocks, 99])


def chain_of(tokens: list[int], salt: str | None = None, block_size: int = 4) -> list[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, root_digest(salt), tokens, block_size, len(tokens) // block_size)
    return chain


def test_equal_prefixes_have_equal_digests_and_nothing_else_has():
    base = list(range(12))
    assert chain_of(base)[:2] == chain_of([*range(8), 99, 99, 99, 99])[:2]
    assert chain_of(base)[2] != chain_of([*range(8), 99, 99, 99, 99])[2]
    assert chain_of(base)[1] != chain_of([1, *range(1, 12)])[1]
    assert set(chain_of(base)).isdisjoint(chain_of(base, salt="a"))
    assert set(chain_of(base, salt="")).isdisjoint(chain_of(base))


def test_a_chain_grows_without_changing():
    tokens = list(range(16))
    chain: list[bytes] = []
    for num_blocks in (1, 1, 3, 4):
        extend_chain(chain, root_digest(None), tokens, 4, num_blocks)
    assert chain == chain_of(tokens)
    with pytest.raises(ValueError, match="5 pages of 4 from 16 known tokens"):
        extend_chain(chain, root_digest(None), tokens, 4, 5)


def test_salt_and_adapter_are_not_interchangeable():
    assert root_digest("a") != root_digest(None, "a")
    assert root_digest("ab", "c") != root_digest("a", "bc")

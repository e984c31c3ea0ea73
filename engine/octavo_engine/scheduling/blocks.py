"""The pool of KV pages: who owns which, which are free, which can be found again by their content.

It knows block ids and digests; it knows no tokens, no sequences and no torch.

Who owns a page:

| page                         | references | in the free list | findable by digest |
|------------------------------|------------|------------------|--------------------|
| 0, the null block            | none       | never            | never              |
| empty                        | 0          | at the front     | no                 |
| cached: a prefix nobody uses | 0          | by age           | yes                |
| in use, still being filled   | 1          | no               | no                 |
| in use, full                 | 1 or more  | no               | yes, or its twin is |

A page given back by a sequence keeps its reference until no step in flight can write to it; the
scheduler holds it meanwhile (`frees.py`). Eviction takes the front of the free list, so
empty pages go first, then the prefix that was left alone longest.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable

NULL_BLOCK = 0


class BlockPool:
    """Pages 1 to num_blocks - 1 with reference counts; page 0 is the null block.

    One pool serves all KV groups: a page is as many bytes in each. Digests are looked up by group.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs the null block and one more, got {num_blocks}")
        self._refs = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._digest_of: dict[int, tuple[int, bytes]] = {}
        self._found_by: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self._num_cached = 0

    @property
    def num_usable(self) -> int:
        return len(self._refs) - 1

    @property
    def num_free(self) -> int:
        """Pages without a reference: empty or cached."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_usable - len(self._free)

    @property
    def num_cached(self) -> int:
        """Pages without a reference that can still be found by their content."""
        return self._num_cached

    def is_free(self, block: int) -> bool:
        return block in self._free

    def allocate(self, count: int) -> list[int]:
        """Takes pages from the front of the free list, one reference each; their old content is
        forgotten. The caller has checked `num_free`."""
        if count > len(self._free):
            raise ValueError(f"{count} pages asked for, {len(self._free)} are free")
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._refs[block] = 1
            blocks.append(block)
        return blocks

    def touch(self, block: int) -> None:
        """One more reference to a page found by its digest."""
        if self._refs[block] == 0:
            del self._free[block]
            if block in self._digest_of:
                self._num_cached -= 1
        self._refs[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Gives one reference back for each page, the null block apart.

        Pages of one table come last first, so that a chain is evicted from its end.
        """
        refs, free = self._refs, self._free
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if refs[block] <= 0:
                raise ValueError(f"page {block} was given back twice")
            refs[block] -= 1
            if refs[block] == 0:
                free[block] = None
                if block in self._digest_of:
                    self._num_cached += 1
                else:
                    free.move_to_end(block, last=False)

    def find(self, group_idx: int, digest: bytes) -> int | None:
        return self._found_by[group_idx].get(digest)

    def register(self, group_idx: int, digest: bytes, block: int) -> None:
        """Makes a full page findable. Of two pages with equal content the first stays known."""
        found_by = self._found_by[group_idx]
        if digest in found_by or block in self._digest_of:
            return
        if self._refs[block] <= 0:
            raise ValueError(f"page {block} was registered without an owner")
        found_by[digest] = block
        self._digest_of[block] = (group_idx, digest)

    def _forget(self, block: int) -> None:
        key = self._digest_of.pop(block, None)
        if key is None:
            return
        group_idx, digest = key
        del self._found_by[group_idx][digest]
        if self._refs[block] == 0:
            self._num_cached -= 1

    def check_integrity(self, owned: Iterable[int]) -> None:
        """Compares the pool with its owners' own account. `owned`: each reference once.

        Raises AssertionError: a difference is a bug of ours, and serving on would mix requests up.
        """
        counted = Counter(owned)
        counted.pop(NULL_BLOCK, None)
        for block in range(1, len(self._refs)):
            expected = counted.pop(block, 0)
            refs = self._refs[block]
            assert refs == expected, f"page {block}: {refs} references, its owners count {expected}"
            assert (refs == 0) == (block in self._free), f"page {block}: free list and count differ"
        assert not counted, f"owners hold pages outside the pool: {dict(counted)}"
        assert self._refs[NULL_BLOCK] == 0, "the null block has an owner"
        known = {block for found_by in self._found_by for block in found_by.values()}
        assert known == set(self._digest_of), "digests and their pages differ"
        num_cached = sum(1 for block in known if block in self._free)
        assert num_cached == self._num_cached, (
            f"{self._num_cached} cached pages, found {num_cached}"
        )

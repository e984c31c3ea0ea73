"""Block tables: which pages a sequence needs in each KV group, and getting them from the pool.

One arithmetic serves the door, admission and allocation: what the door lets in fits an empty pool,
and what admission finds room for can be allocated. Knows no queue, no batch and no torch.

A full group keeps every position. A window group keeps what a query can still see: pages that have
left its window are given back and stand as the null block in the table.
"""

from dataclasses import dataclass

from octavo_engine.batch import AppendedBlocks, BlockCopy, KVGroup
from octavo_engine.scheduling.blocks import NULL_BLOCK, BlockPool
from octavo_engine.scheduling.capacity import capacity_tokens, ceil_div
from octavo_engine.scheduling.prefix import extend_chain
from octavo_engine.scheduling.request import Sequence


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The longest prefix that every group can serve from cached pages."""

    num_tokens: int
    tables: list[list[int]]
    """For each group, the pages of [0, num_tokens), null where no later query looks."""


@dataclass(frozen=True, slots=True)
class AdmissionNeed:
    num_now: int
    """Pages that admission takes out of the free list: cached hits and new ones."""
    num_later: int
    """Pages by which window groups still grow until the prompt is done."""


class BlockTables:
    """Gives sequences their pages. All methods either do all of it or change nothing."""

    def __init__(
        self, pool: BlockPool, groups: tuple[KVGroup, ...], block_size: int, prefix_caching: bool
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self._groups = groups
        self._windows = [group.window for group in groups]
        self._window_idx = [idx for idx, window in enumerate(self._windows) if window is not None]
        self._num_full = len(groups) - len(self._window_idx)
        self._prefix_caching = prefix_caching

    # What fits.

    def capacity_tokens(self, limit: int) -> int:
        """The longest sequence up to `limit`, in written positions, that an empty pool serves."""
        return capacity_tokens(self._windows, self.block_size, self.pool.num_usable, limit)

    # Prefix hits.

    def chain_of(self, seq: Sequence, num_blocks: int) -> list[bytes]:
        extend_chain(seq.chain, seq.root, seq.token_ids, self.block_size, num_blocks)
        return seq.chain

    def find_prefix(self, seq: Sequence) -> PrefixHit:
        """Looks only; `admit` takes references. The last known token is never part of a hit: its
        logits are needed."""
        num_blocks = (len(seq.token_ids) - 1) // self.block_size
        if not self._prefix_caching or seq.wants_prompt_logprobs or num_blocks == 0:
            return PrefixHit(0, [[] for _ in self._groups])
        chain = self.chain_of(seq, num_blocks)
        tables: list[list[int]] = []
        while True:
            tables = [self._find_in_group(g, chain, num_blocks) for g in range(len(self._groups))]
            shortest = min(len(table) for table in tables)
            if all(len(table) == shortest for table in tables):
                return PrefixHit(shortest * self.block_size, tables)
            # A window group that serves a longer prefix need not serve a shorter one.
            num_blocks = shortest

    def _find_in_group(self, group_idx: int, chain: list[bytes], num_blocks: int) -> list[int]:
        find, window = self.pool.find, self._windows[group_idx]
        if window is None:
            table = []
            for digest in chain[:num_blocks]:
                block = find(group_idx, digest)
                if block is None:
                    break
                table.append(block)
            return table
        return self._find_in_window(group_idx, window, chain, num_blocks)

    def _find_in_window(
        self, group_idx: int, window: int, chain: list[bytes], num_blocks: int
    ) -> list[int]:
        """The longest prefix whose last window - 1 positions are cached, searched from its end."""
        end = num_blocks
        found: list[int] = []
        for idx in range(num_blocks - 1, -1, -1):
            if idx < self._first_visible(window, end * self.block_size):
                break
            block = self.pool.find(group_idx, chain[idx])
            if block is None:
                end, found = idx, []
            else:
                found.append(block)
        return [NULL_BLOCK] * (end - len(found)) + found[::-1]

    def _first_visible(self, window: int, query: int) -> int:
        """The first page that a query at position `query` reads."""
        return max(0, query - window + 1) // self.block_size

    # Admission.

    def need(self, seq: Sequence, hit: PrefixHit, first_chunk: int) -> AdmissionNeed:
        """What admitting `seq` with `hit` takes: full groups get the whole prompt at once, so that
        a prefill never runs dry half way; window groups get pages chunk by chunk."""
        is_free, size = self.pool.is_free, self.block_size
        prompt_blocks = ceil_div(len(seq.token_ids), size)
        hit_blocks = hit.num_tokens // size
        now = sum(1 for t in hit.tables for block in t if block and is_free(block))
        now += self._num_full * (prompt_blocks - hit_blocks)
        chunk_blocks = ceil_div(hit.num_tokens + first_chunk, size) - hit_blocks
        later = 0
        for group_idx in self._window_idx:
            window = self._windows[group_idx] or 0
            held = sum(1 for block in hit.tables[group_idx] if block)
            now += chunk_blocks
            peak = min(prompt_blocks, ceil_div(window + first_chunk, size) + 1)
            later += max(0, peak - held - chunk_blocks)
        return AdmissionNeed(now, later)

    def admit(self, seq: Sequence, hit: PrefixHit, first_chunk: int) -> None:
        """Takes all hits first, then new pages, so that no allocation can evict a hit."""
        for table in hit.tables:
            for block in table:
                if block:
                    self.pool.touch(block)
        seq.block_tables = [list(table) for table in hit.tables]
        seq.num_computed = hit.num_tokens
        seq.num_registered = hit.num_tokens // self.block_size
        for group_idx, table in enumerate(seq.block_tables):
            num_blocks = self._blocks_for(seq, group_idx, hit.num_tokens + first_chunk)
            table += self.pool.allocate(max(0, num_blocks - len(table)))
        self._note_capacity(seq)

    def shareable(self, parent: Sequence, query: int) -> list[list[int]] | None:
        """For each group, the parent's pages before the one that `query` lies in, null where the
        query does not look; None when the parent has given back one that a fork needs."""
        own_idx, num_copied = divmod(query, self.block_size)
        shared = []
        for window, table in zip(self._windows, parent.block_tables, strict=True):
            first = 0 if window is None else self._first_visible(window, query)
            end = own_idx + (1 if num_copied else 0)
            if any(block == NULL_BLOCK for block in table[first:end]):
                return None
            shared.append([NULL_BLOCK] * min(first, own_idx) + table[first:own_idx])
        return shared

    def admit_fork(self, seq: Sequence, shared: list[list[int]], query: int) -> list[int]:
        """Gives a fork the shared pages and one of its own in each group; returns the latter."""
        for table in shared:
            for block in table:
                if block:
                    self.pool.touch(block)
        fresh = self.pool.allocate(len(shared))
        seq.block_tables = [[*table, block] for table, block in zip(shared, fresh, strict=True)]
        seq.num_computed = query
        seq.num_registered = query // self.block_size
        self._note_capacity(seq)
        return fresh

    def need_from_host(self, seq: Sequence, end: int) -> int:
        """Pages that `admit_from_host` takes: those swapped out, and what reaching `end` adds."""
        total = sum(1 for table in seq.host_tables for block in table if block)
        for group_idx, table in enumerate(seq.host_tables):
            total += max(0, self._blocks_for(seq, group_idx, end) - len(table))
        return total

    def admit_from_host(self, seq: Sequence, end: int) -> list[BlockCopy]:
        """Gives the sequence fresh pages; returns the copies that bring their content back."""
        copies = []
        seq.block_tables = []
        for group_idx, host_table in enumerate(seq.host_tables):
            fresh = iter(self.pool.allocate(sum(1 for block in host_table if block)))
            table = [next(fresh) if block else NULL_BLOCK for block in host_table]
            pairs = zip(host_table, table, strict=True)
            copies += [BlockCopy(src, dst) for src, dst in pairs if src]
            count = max(0, self._blocks_for(seq, group_idx, end) - len(table))
            seq.block_tables.append(table + self.pool.allocate(count))
        self._note_capacity(seq)
        return copies

    def _blocks_for(self, seq: Sequence, group_idx: int, end: int) -> int:
        """Length of a group's table at admission: full groups get room for all known tokens."""
        is_full = self._windows[group_idx] is None
        return ceil_div(len(seq.token_ids) if is_full else end, self.block_size)

    # Growth.

    def missing(self, seq: Sequence, end: int) -> int:
        """Pages that `extend` to `end` written positions would take."""
        num_blocks = ceil_div(end, self.block_size)
        return sum(max(0, num_blocks - len(table)) for table in seq.block_tables)

    def reachable(self, seq: Sequence, end: int) -> int:
        """How far towards `end` the free pages let the sequence grow now."""
        num_blocks = ceil_div(end, self.block_size)
        while num_blocks * self.block_size > seq.num_computed:
            if self.missing(seq, num_blocks * self.block_size) <= self.pool.num_free:
                return min(end, num_blocks * self.block_size)
            num_blocks -= 1
        return seq.num_computed

    def extend(self, seq: Sequence, end: int) -> list[AppendedBlocks]:
        """Covers positions up to `end`; the caller has seen that `missing` pages are free."""
        num_blocks = ceil_div(end, self.block_size)
        appended = []
        assert seq.row is not None
        for group_idx, table in enumerate(seq.block_tables):
            count = num_blocks - len(table)
            if count > 0:
                blocks = self.pool.allocate(count)
                appended.append(AppendedBlocks(seq.row, group_idx, len(table), blocks))
                table += blocks
        self._note_capacity(seq)
        return appended

    def trim_windows(self, seq: Sequence) -> list[int]:
        """Takes pages out of the tables that no query from `num_computed` on sees; the caller gives
        them back when no step in flight can touch them."""
        out: list[int] = []
        for group_idx in self._window_idx:
            table, window = seq.block_tables[group_idx], self._windows[group_idx] or 0
            idx = min(self._first_visible(window, seq.num_computed), len(table)) - 1
            while idx >= 0 and table[idx]:
                out.append(table[idx])
                table[idx] = NULL_BLOCK
                idx -= 1
        return out

    def take_all(self, seq: Sequence) -> list[int]:
        """Empties the tables; returns their pages in the order to give them back, ends first."""
        out = [block for table in seq.block_tables for block in reversed(table) if block]
        seq.block_tables = []
        seq.capacity_tokens = 0
        return out

    def register(self, seq: Sequence) -> None:
        """Offers the sequence's full pages of known tokens to the prefix cache."""
        if not self._prefix_caching:
            return
        num_blocks = min(seq.num_computed, len(seq.token_ids)) // self.block_size
        if num_blocks <= seq.num_registered:
            return
        chain = self.chain_of(seq, num_blocks)
        for group_idx, table in enumerate(seq.block_tables):
            for idx in range(seq.num_registered, num_blocks):
                if table[idx]:
                    self.pool.register(group_idx, chain[idx], table[idx])
        seq.num_registered = num_blocks

    def _note_capacity(self, seq: Sequence) -> None:
        seq.capacity_tokens = min(len(table) for table in seq.block_tables) * self.block_size

"""A runner without a model: it keeps pages and rows as a device would and checks every use of them.

Each page holds the tokens that were written to its slots, and the length that they were rotated for
where that matters. A step reads its context back through the block tables, window by window, and
refuses to go on when a slot holds anything but the token of its position. The next token is a hash
of all tokens before it, so any bookkeeping error shows.
"""

import hashlib
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo_engine.batch import (
    AdmittedRow,
    Batch,
    KVGroup,
    PromptLogprobs,
    RowWork,
    SampledToken,
    StepResult,
)
from octavo_engine.messages import EngineInfo, PositionLogprobs, TokenLogprob
from octavo_engine.sampling_params import SamplingParams

VOCAB_SIZE = 97
EOS = 1

FULL = KVGroup((0,), None)


def next_token(token_ids: list[int], params: SamplingParams, seed: int) -> int:
    """What the fake samples after `token_ids`: noise comes from the seed and the position."""
    noise = b"" if params.temperature == 0 else seed.to_bytes(8, "little")
    data = array("i", token_ids).tobytes() + noise
    digest = hashlib.blake2b(data, digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB_SIZE


def logprobs_of(token_id: int, position: int, count: int) -> PositionLogprobs:
    chosen = TokenLogprob(token_id, -position / 7, 1)
    return PositionLogprobs(chosen, [chosen] * count)


class Broken(AssertionError):
    """The scheduler used the device wrongly."""


@dataclass
class _Page:
    group_idx: int
    tokens: list[int | None]


@dataclass
class _Row:
    admission: int
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    tables: list[list[int]]
    num_admitted_tokens: int
    num_computed: int = 0
    """Where the next work must start; set by the first one."""
    is_fresh: bool = True


@dataclass
class Handle:
    outcome: StepResult | BaseException
    runner: "FakeRunner"
    ready: Callable[[], None]
    was_read: bool = False

    def result(self) -> StepResult:
        self.ready()
        self.runner.finish_one(self)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@dataclass
class FakeRunner:
    num_blocks: int = 64
    block_size: int = 16
    kv_groups: tuple[KVGroup, ...] = (FULL,)
    max_num_seqs: int = 8
    max_model_len: int = 4096
    vocab_size: int = VOCAB_SIZE
    """What `info` says; the tokens it samples lie below `VOCAB_SIZE` in any case."""
    num_host_blocks: int = 0
    original_context_len: int | None = None
    """Of `EngineInfo`, as is the next."""
    restart_len: int | None = None
    fail_rows: Callable[[Batch], dict[int, str]] = lambda batch: {}
    raise_in_step: Callable[[Batch], BaseException | None] = lambda batch: None
    step_seconds: Callable[[Batch], float] = lambda batch: 0.0
    gate: threading.Event | None = None
    """When set, results wait for it."""
    batches: list[Batch] | None = None
    """Kept when the test asks for it by giving a list."""
    is_closed: bool = False
    num_swapped_out: int = 0
    num_copied: int = 0
    num_restarted: int = 0
    """Rows taken anew for a sequence that outgrew `restart_len`."""
    _pages: dict[int, _Page] = field(default_factory=dict)
    _host_pages: dict[int, _Page] = field(default_factory=dict)
    _rows: dict[int, _Row] = field(default_factory=dict)
    _in_flight: deque[tuple[Handle, dict[int, int], Batch]] = field(default_factory=deque)
    """Steps launched and not read, each with its written pages and the admission they belong to."""
    _failure: BaseException | None = None
    """What a step raised: the device answers nothing else from then on."""
    _num_admitted: int = 0
    _writes: dict[int, int] = field(default_factory=dict)

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_num_seqs=self.max_num_seqs,
            dtype="float32",
            device="cpu",
            original_context_len=self.original_context_len,
            restart_len=self.restart_len,
        )

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        if self._in_flight and self._failure is None:
            raise Broken("closed with steps in flight")
        self.is_closed = True

    def launch(self, batch: Batch) -> Handle:
        if self.batches is not None:
            self.batches.append(batch)
        self._writes = {}
        seconds = self.step_seconds(batch)
        self._failure = self._failure or self.raise_in_step(batch)
        outcome = self._failure or self._run(batch, seconds)
        gate = self.gate

        def ready() -> None:
            if gate is not None and not gate.wait(10):
                raise TimeoutError("the test never opened the gate")
            if seconds > 0 and gate is None:
                time.sleep(seconds)

        handle = Handle(outcome, self, ready)
        self._in_flight.append((handle, self._writes, batch))
        return handle

    def finish_one(self, handle: Handle) -> None:
        if not self._in_flight or self._in_flight[0][0] is not handle:
            raise Broken("results are read out of order")
        self._in_flight.popleft()

    # One batch, in the order that the contract gives.

    def _run(self, batch: Batch, seconds: float) -> StepResult:
        self.num_swapped_out += len(batch.swap_out)
        self.num_copied += len(batch.copies)
        for row in batch.released_rows:
            self._rows.pop(row, None)
        for copy in batch.swap_out:
            self._check_not_copied(copy.dst, "swap_in")
            self._host_pages[copy.dst] = self._copy_of(self._pages[copy.src])
        for copy in batch.swap_in:
            self._note_write(copy.dst, None)
            self._pages[copy.dst] = self._copy_of(self._host_pages[copy.src])
        for copy in batch.copies:
            self._note_write(copy.dst, None)
            self._pages[copy.dst] = self._copy_of(self._pages[copy.src])
        for admitted in batch.admitted:
            self._admit(admitted)
        for part in batch.appended:
            table = self._rows[part.row].tables[part.group_idx]
            if len(table) != part.first_idx:
                raise Broken(
                    f"row {part.row} has {len(table)} blocks, appended at {part.first_idx}"
                )
            table.extend(part.block_ids)
        self._check_work(batch)
        # All keys and values are written before any query looks, as in a real layer.
        for work in batch.work:
            self._write(work)
        failed = self.fail_rows(batch)
        for work in batch.work:
            if work.row in failed and work.samples:
                self._rows[work.row].token_ids.append(0)  # the next step may be under way
        sampled = [
            self._sample(work)
            for work in batch.work
            if self._read(work) and work.samples and work.row not in failed
        ]
        prompt_logprobs = [part for work in batch.work if (part := self._prompt_logprobs(work))]
        return StepResult(
            step_id=batch.step_id,
            sampled=sampled,
            prompt_logprobs=prompt_logprobs,
            failed_rows=failed,
            duration_s=seconds,
        )

    def _copy_of(self, page: _Page) -> _Page:
        return _Page(page.group_idx, list(page.tokens))

    def _admit(self, admitted: AdmittedRow) -> None:
        if admitted.row in self._rows:
            raise Broken(f"row {admitted.row} is taken")
        if not 0 <= admitted.row < self.max_num_seqs:
            raise Broken(f"row {admitted.row} is outside the table")
        self._num_admitted += 1
        if self.restart_len is not None:
            is_longer = len(admitted.token_ids) > self.restart_len
            self.num_restarted += admitted.num_prompt_tokens <= self.restart_len and is_longer
        self._rows[admitted.row] = _Row(
            self._num_admitted,
            list(admitted.token_ids),
            admitted.num_prompt_tokens,
            admitted.params,
            admitted.seed,
            [list(table) for table in admitted.block_tables],
            len(admitted.token_ids),
        )

    def _check_work(self, batch: Batch) -> None:
        rows = [work.row for work in batch.work]
        if len(set(rows)) != len(rows):
            raise Broken(f"a row works twice in one step: {rows}")
        for work in batch.work:
            row, end = self._rows[work.row], work.start + work.num_tokens
            if not row.is_fresh and work.start != row.num_computed:
                raise Broken(
                    f"row {work.row} is at {row.num_computed}, work starts at {work.start}"
                )
            if work.samples != (end == len(row.token_ids)) or end > len(row.token_ids):
                raise Broken(f"work up to {end} of {len(row.token_ids)} tokens: {work}")
            if work.phase == "decode" and (row.is_fresh or work.num_tokens != 1):
                raise Broken(f"not a decode: {work}")
            row.is_fresh = False
            row.num_computed = end

    def _note_write(self, block: int, admission: int | None) -> None:
        if not 0 < block < self.num_blocks:
            raise Broken(f"block {block} is written")
        self._check_not_copied(block, "swap_out")
        for _, writes, _ in self._in_flight:
            if block in writes and writes[block] != admission:
                raise Broken(f"block {block} is handed on while a step in flight writes to it")
        if self._writes.setdefault(block, admission or 0) not in (admission, 0):
            raise Broken(f"block {block} is written by two rows in one step")
        self._writes[block] = admission or 0

    def _check_not_copied(self, block: int, name: str) -> None:
        """Copies to and from host memory may take as long as their step is in flight."""
        for _, _, batch in self._in_flight:
            if any(copy.src == block for copy in getattr(batch, name)):
                raise Broken(f"block {block} is overwritten while a {name} in flight reads it")

    def _write(self, work: RowWork) -> None:
        row, size = self._rows[work.row], self.block_size
        for position in range(work.start, work.start + work.num_tokens):
            for group_idx, table in enumerate(row.tables):
                block = table[position // size]
                if position == work.start or position % size == 0:
                    self._note_write(block, row.admission)
                    page = self._pages.get(block)
                    if page is None or position % size == 0:
                        page = self._pages[block] = _Page(group_idx, [None] * size)
                    if page.group_idx != group_idx:
                        raise Broken(f"block {block} is written by group {group_idx}")
                (key,) = self._keys(row, position, position + 1, position + 1)
                self._pages[block].tokens[position % size] = key

    def _keys(self, row: _Row, low: int, high: int, end: int) -> list[int]:
        """What the slots of positions [low, high) hold for queries up to `end`: tokens, each with
        its rotation."""
        tokens = row.token_ids[low:high]
        limit = self.original_context_len
        if limit is None:
            return tokens
        if self.restart_len is not None:
            is_long = max(row.num_admitted_tokens, end) > self.restart_len
            return [token + VOCAB_SIZE * is_long for token in tokens]
        lens = [max(row.num_prompt_tokens, at + 1) for at in range(low, high)]
        return [t + VOCAB_SIZE * (n if n > limit else 0) for t, n in zip(tokens, lens, strict=True)]

    def _read(self, work: RowWork) -> bool:
        """Checks all that the work's queries see: from the first one's window to the last one."""
        row, size = self._rows[work.row], self.block_size
        end = work.start + work.num_tokens
        for group_idx, group in enumerate(self.kv_groups):
            first = 0 if group.window is None else max(0, work.start - group.window + 1)
            for page_idx in range(first // size, (end - 1) // size + 1):
                block = row.tables[group_idx][page_idx]
                page = self._pages.get(block) if block else None
                if page is None or page.group_idx != group_idx:
                    raise Broken(f"row {work.row} reads block {block} of another owner")
                low, high = max(first, page_idx * size), min(end, (page_idx + 1) * size)
                seen = page.tokens[low - page_idx * size : high - page_idx * size]
                if seen != self._keys(row, low, high, end):
                    raise Broken(f"row {work.row} reads {seen} at {low}:{high} from block {block}")
        return True

    def _sample(self, work: RowWork) -> SampledToken:
        row = self._rows[work.row]
        token_id = next_token(row.token_ids, row.params, row.seed)
        position = len(row.token_ids)
        row.token_ids.append(token_id)
        count = row.params.logprobs
        logprobs = None if count is None else logprobs_of(token_id, position, count)
        return SampledToken(row=work.row, token_id=token_id, logprobs=logprobs)

    def _prompt_logprobs(self, work: RowWork) -> PromptLogprobs | None:
        row = self._rows[work.row]
        count = row.params.prompt_logprobs
        last = min(work.start + work.num_tokens, row.num_prompt_tokens - 1)
        if count is None or work.phase == "decode" or last <= work.start:
            return None
        positions = [
            logprobs_of(row.token_ids[at], at, count) for at in range(work.start + 1, last + 1)
        ]
        return PromptLogprobs(work.row, work.start + 1, positions)

"""How a waiting sequence enters the runner's table: by its prefix, as a fork, from host memory.

Each way counts the pages it will take with the arithmetic that then takes them.
"""

from octavo_engine.batch import BlockCopy
from octavo_engine.scheduling.request import Sequence, SequenceState
from octavo_engine.scheduling.state import SchedulerState
from octavo_engine.scheduling.step import StepBuild


def admit(state: SchedulerState, step: StepBuild, seq: Sequence) -> bool:
    """Takes the head of the queue into the step; False when its pages are not free yet."""
    if state.running and state.pool.num_free <= watermark(state):
        return False  # at least one new page is always needed: no use in looking for hits
    _forget_outgrown(state, seq)
    if seq.host_tables:
        return _admit_from_host(state, step, seq)
    parent = _fork_parent(step, seq)
    if parent is not None and _admit_fork(state, step, seq, parent):
        return True
    return _admit_by_prefix(state, step, seq)


def _forget_outgrown(state: SchedulerState, seq: Sequence) -> None:
    """What was computed for a shorter sequence is wrong for this one, and so are its names."""
    num_known = len(seq.token_ids)
    if not state.door.outgrows(seq.num_rotated, num_known):
        return
    state.release_host(seq, state.last_launched + (1 if state.swap_out else 0))
    seq.num_rotated = num_known
    seq.root = state.door.root(seq.request.spec, num_known)
    seq.chain = []
    seq.num_computed = 0


def watermark(state: SchedulerState) -> int:
    """Free pages that an admission leaves to the running sequences, so that it does not cost
    one of them its place a few steps later."""
    return state.pool.num_usable // 100 if state.running else 0


def make_way_for_urgent(state: SchedulerState, max_chunk: int) -> None:
    """Preempts sequences of a less urgent priority while they keep the head of the queue out.

    Only such that also stand behind it in the common order: ageing is part of that order, so it
    bounds how often one sequence can lose its place. Comes before any work is given out.
    """
    head = state.queue.peek()
    if head is None:
        return
    while state.running and _must_yield(state.running[-1], head):
        hit = state.tables.find_prefix(head)
        chunk = min(len(head.token_ids) - hit.num_tokens, max_chunk)
        need = state.tables.need(head, hit, chunk).num_now + watermark(state)
        if state.free_rows and state.pool.num_free + state.frees.num_pending >= need:
            return
        state.preempt(state.running[-1])


def _must_yield(seq: Sequence, head: Sequence) -> bool:
    return head.key < seq.key and head.request.spec.priority < seq.request.spec.priority


def _fits(state: SchedulerState, num_now: int, num_later: int) -> bool:
    if state.running:
        return state.pool.num_free >= num_now + num_later + watermark(state)
    # Alone: the door has seen that it fits an empty pool, growing step by step.
    return state.pool.num_free >= num_now


def _admit_by_prefix(state: SchedulerState, step: StepBuild, seq: Sequence) -> bool:
    tables = state.tables
    hit = tables.find_prefix(seq)
    chunk = min(len(seq.token_ids) - hit.num_tokens, step.prefill_left)
    need = tables.need(seq, hit, chunk)
    if not state.running and need.num_now > state.pool.num_free:
        chunk = min(chunk, tables.block_size)
        need = tables.need(seq, hit, chunk)
    if not _fits(state, need.num_now, need.num_later):
        return False
    state.start_running(seq)
    tables.admit(seq, hit, chunk)
    _note_first_admission(state, seq, hit.num_tokens)
    step.add_admitted(seq)
    step.add_prefill(seq, hit.num_tokens + chunk)
    return True


def _note_first_admission(state: SchedulerState, seq: Sequence, num_hit_tokens: int) -> None:
    if seq.was_admitted:
        return
    seq.was_admitted = True
    seq.admitted_s = state.now_s
    seq.num_cached_tokens = num_hit_tokens
    state.counters.prefix_queries_tokens += seq.num_prompt_tokens
    state.counters.prefix_hits_tokens += num_hit_tokens


def _fork_parent(step: StepBuild, seq: Sequence) -> Sequence | None:
    """The first sequence of the request, when an earlier step has computed its whole prompt."""
    parent = seq.request.sequences[0]
    is_fresh = seq.index > 0 and not seq.was_admitted and seq.root == parent.root
    has_prompt = not parent.is_prefilling and parent.prompt_step < step.step_id
    return parent if is_fresh and has_prompt and parent.state is SequenceState.RUNNING else None


def _admit_fork(state: SchedulerState, step: StepBuild, seq: Sequence, parent: Sequence) -> bool:
    """Shares the pages of all prompt tokens but the last, which is computed again for its logits.
    The page that the last token lies in is the fork's own: copied when others lie there too."""
    tables, last = state.tables, seq.num_prompt_tokens - 1
    own_idx, num_copied = divmod(last, tables.block_size)
    shared = tables.shareable(parent, last)
    if shared is None or not _fits(state, len(shared), 0):
        return False
    state.start_running(seq)
    fresh = tables.admit_fork(seq, shared, last)
    if num_copied:
        step.copies += [
            BlockCopy(table[own_idx], block)
            for table, block in zip(parent.block_tables, fresh, strict=True)
        ]
    seq.was_admitted = True
    seq.admitted_s = state.now_s
    seq.num_cached_tokens = parent.num_cached_tokens
    step.add_admitted(seq)
    step.add_prefill(seq, seq.num_prompt_tokens)
    return True


def _admit_from_host(state: SchedulerState, step: StepBuild, seq: Sequence) -> bool:
    tables = state.tables
    num_known = len(seq.token_ids)
    chunk = min(num_known - seq.num_computed, step.prefill_left)
    num_now = tables.need_from_host(seq, seq.num_computed + chunk)
    if not state.running and num_now > state.pool.num_free:
        page_end = (seq.num_computed // tables.block_size + 1) * tables.block_size
        chunk = min(chunk, page_end - seq.num_computed)
        num_now = tables.need_from_host(seq, seq.num_computed + chunk)
    if not _fits(state, num_now, 0):
        return False
    state.start_running(seq)
    step.swap_in += tables.admit_from_host(seq, seq.num_computed + chunk)
    # This very step reads the host pages.
    state.release_host(seq, step.step_id)
    step.add_admitted(seq)
    step.add_prefill(seq, seq.num_computed + chunk)
    return True

"""The engine on its own thread: streams, sleep, aborts, failures and death."""

import asyncio
import random
import threading
from queue import SimpleQueue
from typing import Any

import pytest
from tests.engine.core_driver import greedy, prompt_of, reference
from tests.engine.fake_runner import FakeRunner
from tests.engine.in_process_case import engine, read, request

from octavo_engine.batch import Batch
from octavo_engine.core import in_process
from octavo_engine.core.streams import QueueMailbox
from octavo_engine.errors import EngineDead
from octavo_engine.messages import ENGINE_STOPPED, REQUEST_FAILED, RequestDelta
from octavo_engine.scheduling.block_tables import BlockTables
from octavo_engine.scheduling.request import Sequence


async def test_streams_deliver_the_reference_tokens_and_end():
    core = engine(FakeRunner())
    requests = [request(str(i), prompt_of(5 + i, i), greedy(20)) for i in range(20)]
    results = await asyncio.gather(*(read(core.submit(r)) for r in requests))
    for r, deltas in zip(requests, results, strict=True):
        assert [t for d in deltas for t in d.token_ids] == reference(r, 0, 1000)
        assert [d.finish_reason for d in deltas if d.finish_reason] == ["length"]
    assert core.stats().finished_total["length"] == 20
    await core.close()


async def test_a_queue_gets_the_deltas_of_all_its_requests():
    core = engine(FakeRunner())
    mailbox = QueueMailbox()
    requests = [request(str(i), prompt_of(5, i)) for i in range(5)]
    for r in requests:
        core.submit_to(r, mailbox)
    tokens: dict[str, list[int]] = {r.request_id: [] for r in requests}
    num_ended = 0
    while num_ended < 5:
        for delta in mailbox.get():
            tokens[delta.request_id] += delta.token_ids
            num_ended += delta.finish_reason is not None
    assert all(tokens[r.request_id] == reference(r, 0, 1000) for r in requests)
    await core.close()


class NotedInbox(SimpleQueue[Any]):
    """Tells whether the core's thread waits for a command and for nothing else."""

    waits_for_ever = False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.waits_for_ever = timeout is None
        try:
            return super().get(block, timeout)
        finally:
            self.waits_for_ever = False


async def test_an_idle_engine_sleeps_without_a_limit_and_wakes_for_a_request(monkeypatch):
    monkeypatch.setattr(in_process, "SimpleQueue", NotedInbox)
    monkeypatch.setattr(in_process, "_QUIET_S", 0.01)
    core = engine(FakeRunner())
    await read(core.submit(request("warm")))
    inbox = core._inbox
    assert isinstance(inbox, NotedInbox)
    async with asyncio.timeout(60):
        while not inbox.waits_for_ever:  # once the pages have been counted
            await asyncio.sleep(0.01)
    assert core.stats().last_step_age_s == 0.0
    await read(core.submit(request("next", params=greedy(1))))
    await core.close()


async def test_an_abort_ends_the_stream_and_is_idempotent():
    gate = threading.Event()
    core = engine(FakeRunner(gate=gate))
    stream = core.submit(request("a", params=greedy(500)))
    core.abort("a")
    core.abort("a")
    core.abort("never seen")
    gate.set()
    deltas = await read(stream)
    assert [d.finish_reason for d in deltas if d.finish_reason] == ["abort"]
    await core.close()


async def test_a_stop_string_seen_by_the_server_ends_one_sequence():
    core = engine(FakeRunner())
    stream = core.submit(request("a", params=greedy(900)))
    first = await anext(stream)
    assert first[0].token_ids
    core.finish("a", 0, "END")
    core.finish("a", 0, "END")
    deltas = await read(stream)
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "END")
    await core.close()


async def test_a_failing_step_ends_every_stream_and_the_engine():
    runner = FakeRunner(
        raise_in_step=lambda batch: RuntimeError("device lost") if batch.step_id == 3 else None
    )
    core = engine(runner)
    streams = [core.submit(request(str(i), params=greedy(50))) for i in range(3)]
    for stream in streams:
        last = (await read(stream))[-1]
        assert last.finish_reason == "error"
        assert last.error == ENGINE_STOPPED
    with pytest.raises(EngineDead, match="device lost"):
        core.submit(request("later"))
    assert core.death is not None
    await core.close()


async def test_death_is_told_before_any_stream_ends():
    """A probe that asks after a client's error must not find a healthy server."""
    core = engine(FakeRunner(raise_in_step=lambda batch: RuntimeError("device lost")))
    order: list[str] = []

    class Mailbox:
        def post(self, deltas: list[RequestDelta]) -> None:
            order.extend(str(delta.error) for delta in deltas)

    has_died = threading.Event()

    def note_death(death: str) -> None:
        order.append(death)
        has_died.set()

    core.on_death(note_death)
    core.submit_to(request("a"), Mailbox())
    # A close that comes before the first step ends the request without a death.
    assert await asyncio.to_thread(has_died.wait, 60)
    await core.close()
    assert core.death is not None
    assert order == [core.death, ENGINE_STOPPED]
    core.on_death(order.append)
    assert order[-1] == core.death


async def test_a_failing_row_ends_its_own_request_only():
    runner = FakeRunner(
        fail_rows=lambda batch: (
            {w.row: "bad mask" for w in batch.work if w.row == 0} if batch.step_id == 4 else {}
        )
    )
    core = engine(runner)
    bad, good = request("bad", prompt_of(9, 1), greedy(20)), request("good", params=greedy(20))
    streams = [core.submit(bad), core.submit(good)]
    first, second = await asyncio.gather(*(read(s) for s in streams))
    assert (first[-1].finish_reason, first[-1].error) == ("error", "bad mask")
    assert [t for d in second for t in d.token_ids] == reference(good, 0, 1000)
    await core.close()


async def test_close_aborts_what_is_left_and_closes_the_runner():
    runner = FakeRunner(step_seconds=lambda batch: 0.01)
    core = engine(runner)
    stream = core.submit(request("a", params=greedy(900)))
    await anext(stream)
    await core.close()
    assert (await read(stream))[-1].finish_reason == "abort"
    assert runner.is_closed
    with pytest.raises(EngineDead):
        core.submit(request("b"))


@pytest.mark.parametrize("broken", ["find_prefix", "shareable", "admit_fork"])
async def test_what_breaks_while_one_request_is_admitted_fails_that_request_alone(
    monkeypatch, broken
):
    """The latter two break its second sequence, when the first has work in the same step."""
    method = getattr(BlockTables, broken)

    def break_for_one(tables: BlockTables, seq: Sequence, *rest: Any) -> Any:
        if seq.request.spec.request_id == "bad":
            raise ValueError("no such grammar")
        return method(tables, seq, *rest)

    monkeypatch.setattr(BlockTables, broken, break_for_one)
    core = engine(FakeRunner())
    bad, good = (request(id, prompt_of(40), greedy(20, n=n)) for id, n in (("bad", 2), ("good", 1)))
    streams = [core.submit(bad), core.submit(good)]
    first, second = await asyncio.gather(*(read(s) for s in streams))
    last = {d.index: d for d in first if d.finish_reason is not None}
    assert {index: d.finish_reason for index, d in last.items()} == {0: "error", 1: "error"}
    assert {d.error for d in last.values()} == {REQUEST_FAILED}
    assert [t for d in second for t in d.token_ids] == reference(good, 0, 1000)
    await core.close()


async def test_clients_that_leave_at_any_moment_disturb_nobody():
    core = engine(FakeRunner(num_blocks=40, step_seconds=lambda batch: 0.0005))
    leave = random.Random(3)

    async def client(number: int) -> None:
        own = request(str(number), prompt_of(20, number), greedy(30))
        stream = core.submit(own)
        tokens, reasons = [], []
        leaves_after = leave.choice([None, 0, 1, 5, 29, 30])
        if leaves_after == 0:
            core.abort(own.request_id)
        async for deltas in stream:
            tokens += [t for d in deltas for t in d.token_ids]
            reasons += [d.finish_reason for d in deltas if d.finish_reason]
            if leaves_after is not None and len(tokens) >= leaves_after:
                core.abort(own.request_id)
        expected = reference(own, 0, 600)
        assert reasons in (["length"], ["abort"])
        assert tokens == expected[: len(tokens)]
        assert reasons == ["abort"] or tokens == expected

    await asyncio.gather(*(client(number) for number in range(120)))
    stats = core.stats()
    assert sum(stats.finished_total.values()) == 120
    assert core.death is None
    await core.close()
    assert core.stats().kv_blocks_used == 0


async def test_a_hanging_step_shows_in_the_age_of_the_last_step():
    gate = threading.Event()
    core = engine(FakeRunner(gate=gate))
    stream = core.submit(request("a"))
    await asyncio.sleep(0.3)
    stats = core.stats()
    assert stats.has_work
    assert stats.last_step_age_s > 0.2
    gate.set()
    await read(stream)
    await core.close()


async def test_an_aborted_request_takes_part_in_no_step_after_the_next():
    batches: list[Batch] = []
    gate = threading.Event()
    core = engine(FakeRunner(gate=gate, batches=batches))
    stream = core.submit(request("a", params=greedy(900)))
    gate.set()
    await anext(stream)
    gate.clear()
    num_launched = len(batches)
    core.abort("a")
    gate.set()
    await read(stream)
    await core.close()
    # Two were in flight or on their way when the abort came; it frees the pages with the next one.
    assert len(batches) <= num_launched + 3
    assert core.stats().kv_blocks_used == 0


async def test_where_the_time_of_steps_goes_is_told():
    core = engine(FakeRunner(step_seconds=lambda batch: 0.002))
    deltas = await read(core.submit(request("a", prompt_of(10), greedy(20))))
    steps = core.stats().steps
    assert (steps.num_tokens, sum(steps.tokens_histogram)) == (10 + 19, core.stats().steps_total)
    assert steps.tokens_histogram[0] == 19  # one token each
    assert steps.wait_s > 0.9 * 20 * 0.002
    assert min(steps.schedule_s, steps.launch_s, steps.commit_s) > 0
    assert steps.device_s == pytest.approx(20 * 0.002)
    assert deltas[0].queue_s is not None
    assert 0 <= deltas[0].queue_s < 60
    assert {delta.queue_s for delta in deltas[1:]} == {None}
    await core.close()

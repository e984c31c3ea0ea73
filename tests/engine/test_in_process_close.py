"""The end of an engine on its own thread whose runner has failed while a step may never end."""

import threading

import pytest
from tests.engine.in_process_case import engine, request
from tests.engine.stuck_runner import StuckRunner

from octavo_engine.core import in_process
from octavo_engine.core.streams import QueueMailbox
from octavo_engine.messages import ENGINE_STOPPED


@pytest.mark.parametrize("is_closing_first", [False, True])
def test_a_step_that_never_ends_holds_up_no_close_once_the_runner_has_failed(
    is_closing_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "_END_LIMIT_S", 0.1)
    runner = StuckRunner()
    core = engine(runner)
    mailbox = QueueMailbox()
    core.submit_to(request("a"), mailbox)
    assert runner.has_launched.wait(60)
    closing = threading.Thread(target=core.close_blocking, daemon=True)
    if is_closing_first:
        closing.start()
        closing.join(0.5)
        assert closing.is_alive()  # the step may still end
    runner.fail("rank 1 has ended by signal 9")
    if not is_closing_first:
        closing.start()
    closing.join(60)
    has_closed = not closing.is_alive()
    runner.released.set()
    assert runner.has_closed.wait(60)
    assert has_closed
    assert core.death == "rank 1 has ended by signal 9"
    assert [delta.error for delta in mailbox.get()] == [ENGINE_STOPPED]

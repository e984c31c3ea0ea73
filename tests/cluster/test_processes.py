"""A recorded process is ours only while it is that very process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import api
from tests.cluster.processes import kill_recorded, recorded_pid, spawn_recorded


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Path]:
    """The record of a process that does nothing for a minute."""
    record = tmp_path / "process"
    spawn_recorded(["sleep", "60"], record, tmp_path / "log", cwd=tmp_path, env=dict(os.environ))
    api.wait_until("recorded", record.exists, timeout_s=10)
    yield record
    kill_recorded(record)


def test_a_running_process_is_found(sleeper: Path) -> None:
    pid = recorded_pid(sleeper)
    assert pid is not None
    api.wait_until(
        "become sleep", lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes(), timeout_s=10
    )


def test_a_killed_process_is_gone(sleeper: Path) -> None:
    assert kill_recorded(sleeper)
    assert recorded_pid(sleeper) is None
    assert not kill_recorded(sleeper)


def test_another_process_with_its_pid_is_not_taken_for_it(sleeper: Path) -> None:
    boot_id, stat = sleeper.read_text().split("\n", 1)
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    fields[19] = str(int(fields[19]) - 1)  # the start time
    sleeper_text = sleeper.read_text()
    sleeper.write_text(f"{boot_id}\n{head}) {' '.join(fields)}\n")

    assert recorded_pid(sleeper) is None

    sleeper.write_text(sleeper_text)


def test_a_process_of_an_earlier_boot_is_not_taken_for_it(sleeper: Path) -> None:
    text = sleeper.read_text()
    sleeper.write_text(text.replace(text.split("\n")[0], "0" * 36))

    assert recorded_pid(sleeper) is None

    sleeper.write_text(text)


def test_no_record_is_no_process(tmp_path: Path) -> None:
    assert recorded_pid(tmp_path / "process") is None

"""A pod uses the cores that it was given, and its threads leave the others' alone."""

import os
from pathlib import Path

import pytest

from octavo_engine.cli.threads import cpu_quota, share_the_host


def unified(folder: Path, text: str) -> Path:
    (folder / "cpu.max").write_text(text)
    return folder


def legacy(folder: Path, quota: int) -> Path:
    (folder / "cpu").mkdir()
    (folder / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (folder / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    return folder


def test_the_quota_of_either_cgroup_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    assert cpu_quota(unified(tmp_path, "150000 100000\n")) == 1.5
    assert cpu_quota(legacy(tmp_path / "v1", 250_000)) == 2.5


@pytest.mark.parametrize("text", ["max 100000\n", None])
def test_no_limit_is_none(tmp_path: Path, text: str | None) -> None:
    assert cpu_quota(tmp_path if text is None else unified(tmp_path, text)) is None


def test_the_legacy_versions_no_limit_is_none(tmp_path: Path) -> None:
    assert cpu_quota(legacy(tmp_path, -1)) is None


def test_a_pod_with_less_than_the_node_gets_as_many_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    environment: dict[str, str] = {}
    share_the_host(environment, unified(tmp_path, "350000 100000\n"))
    assert environment == {"GOMP_SPINCOUNT": "10000", "OMP_NUM_THREADS": "3"}


def test_half_a_cpu_is_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    environment: dict[str, str] = {}
    share_the_host(environment, unified(tmp_path, "50000 100000\n"))
    assert environment["OMP_NUM_THREADS"] == "1"


def test_what_the_user_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    chosen = {"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "7"}
    environment = dict(chosen)
    share_the_host(environment, unified(tmp_path, "200000 100000\n"))
    assert environment == chosen

"""The preflight: run by any Python before there is an environment; changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cluster.state import REPOSITORY

_SCRIPT = REPOSITORY / "tests" / "cluster" / "preflight.py"
_SCREEN_LINES = 24


def _preflight(home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs it isolated from site-packages, in an empty home."""
    home.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-S", "-B", _SCRIPT],
        env={"HOME": str(home), "PATH": "/nowhere", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_missing_is_told_on_one_screen(tmp_path: Path) -> None:
    done = _preflight(tmp_path / "home")

    assert done.returncode == 1
    assert "kube-apiserver" in done.stderr
    assert "there is no `go` on PATH" in done.stderr
    assert "KUBECONFIG" in done.stderr
    assert "kind" in done.stderr
    assert len(done.stderr.splitlines()) <= _SCREEN_LINES


def test_nothing_is_changed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    _preflight(home)
    assert list(home.iterdir()) == []


def test_a_given_cluster_is_enough(tmp_path: Path) -> None:
    done = _preflight(tmp_path / "home", KUBECONFIG="/some/where")
    assert (done.returncode, done.stderr) == (0, "")

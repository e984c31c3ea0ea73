"""Finding the programs of a cluster, and building them once: with a `go` that only pretends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster import api, programs
from tests.cluster.errors import Missing
from tests.cluster.state import REPOSITORY

# Writes its -o file slowly, in two pieces, and counts how often it was called to build.
_FAKE_GO = """\
#!/bin/sh
case "$1" in
  env) echo "$FAKE_GO_VERSION"; exit ;;
esac
echo called >> "$FAKE_GO_CALLS"
while [ "$1" != -o ]; do shift; done
printf 'half ' > "$2"
sleep "$FAKE_GO_SECONDS"
printf 'done' >> "$2"
"""
_BUILD = """\
from tests.cluster import programs
programs.obtain(with_nodes=False, say=lambda text: None)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with an empty cache, a fake `go`, and no Kubernetes programs anywhere."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "sleep", "setpriv"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    go = folder / "go"
    go.write_text(_FAKE_GO)
    go.chmod(0o755)
    for variable, value in {
        "PATH": str(folder),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "FAKE_GO_VERSION": "go1.26.8",
        "FAKE_GO_CALLS": str(tmp_path / "calls"),
        "FAKE_GO_SECONDS": "0",
    }.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv("GOTOOLCHAIN", raising=False)
    return tmp_path


def _ignore(text: str) -> None:
    del text


def _install(folder: Path, name: str, says: str) -> Path:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return program


def _start_build(*, seconds: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "FAKE_GO_SECONDS": seconds, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen([sys.executable, "-c", _BUILD], env=environment, cwd=REPOSITORY)


def _num_builds(machine: Path) -> int:
    return len((machine / "calls").read_text().splitlines())


_NUM_PROGRAMS = 6


def test_what_is_missing_is_built_under_its_version(machine: Path) -> None:
    found = programs.obtain(with_nodes=False, say=_ignore)

    version = programs.pinned_version("kubernetes")
    kubectl = machine / "cache" / "octavo" / "tools" / f"kubectl-{version}" / "kubectl"
    assert found["kubectl"] == kubectl
    assert kubectl.read_text() == "half done"


def test_what_is_built_is_not_built_again(machine: Path) -> None:
    programs.obtain(with_nodes=False, say=_ignore)
    programs.obtain(with_nodes=False, say=_ignore)
    assert _num_builds(machine) == _NUM_PROGRAMS


def test_two_builds_at_once_build_once(machine: Path) -> None:
    with _start_build(seconds="0.1") as one, _start_build(seconds="0.1") as other:
        assert (one.wait(), other.wait()) == (0, 0)
    assert _num_builds(machine) == _NUM_PROGRAMS


def test_a_build_killed_half_way_leaves_no_program(machine: Path) -> None:
    tools = machine / "cache" / "octavo" / "tools"
    with _start_build(seconds="5") as build:
        api.wait_until("half a program", lambda: any(tools.glob("*/.*.new")), timeout_s=20)
        build.send_signal(signal.SIGKILL)
    assert not list(tools.glob("etcd-*/etcd"))

    found = programs.obtain(with_nodes=False, say=_ignore)

    assert found["etcd"].read_text() == "half done"


def test_a_program_on_path_is_used_when_new_enough(machine: Path) -> None:
    etcd = _install(machine / "bin", "etcd", "etcd Version: 3.6.1")
    assert programs.obtain(with_nodes=False, say=_ignore)["etcd"] == etcd


def test_an_old_program_on_path_is_not_used(machine: Path) -> None:
    etcd = _install(machine / "bin", "etcd", "etcd Version: 3.4.23")
    assert programs.obtain(with_nodes=False, say=_ignore)["etcd"] != etcd


def test_kubebuilder_assets_come_before_path(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(machine / "bin", "etcd", "etcd Version: 3.6.1")
    etcd = _install(machine / "assets", "etcd", "etcd Version: 3.6.2")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(etcd.parent))
    assert programs.obtain(with_nodes=False, say=_ignore)["etcd"] == etcd


def test_kubernetes_programs_of_different_minors_are_not_mixed(machine: Path) -> None:
    minors = {"kube-apiserver": 36, "kube-controller-manager": 36, "kube-scheduler": 35}
    for name, minor in (minors | {"kubectl": 36}).items():
        _install(machine / "bin", name, f"Kubernetes v1.{minor}.0")
    found = programs.obtain(with_nodes=False, say=_ignore)
    assert not any(found[name].is_relative_to(machine / "bin") for name in minors)


def test_without_go_the_error_names_programs_and_version(machine: Path) -> None:
    (machine / "bin" / "go").unlink()
    with pytest.raises(Missing, match=r"no `go` on PATH\. Install Go 1\.26, or put etcd"):
        programs.obtain(with_nodes=False, say=_ignore)


@pytest.mark.parametrize(
    ("version", "toolchain", "usable"),
    [
        ("go1.26.8", None, True),
        ("go1.22.2", None, True),  # fetches the toolchain it is told to use
        ("go1.27.0", None, True),
        ("go1.22.2", "local", False),
        ("go1.19.8", None, False),  # knows no toolchains
    ],
)
def test_a_go_is_usable_when_it_is_or_may_fetch_the_right_one(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    toolchain: str | None,
    usable: bool,
) -> None:
    monkeypatch.setenv("FAKE_GO_VERSION", version)
    if toolchain is not None:
        monkeypatch.setenv("GOTOOLCHAIN", toolchain)
    assert (programs.go_problem() is None) == usable

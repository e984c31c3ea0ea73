"""Where a cluster's files are, and the locks over them. Knows folders, not Kubernetes.

$XDG_STATE_HOME/octavo/clusters/            default ~/.local/state
  slots.lock                                held while a cluster takes its slot
  NAME.lock                                 held by `up` and `down`
  NAME/                                     everything of one cluster; gone after `down`
    cluster.json                            provider, slot, ports, nodes
    kubeconfig pki/ bin/
    NODE/process NODE/spec.json NODE/log/   one folder per supervisor: its identity, its orders
$XDG_CACHE_HOME/octavo/                     default ~/.cache: built tools, images, wheels; kept
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.cluster.errors import ClusterError

REPOSITORY = Path(__file__).resolve().parents[2]
_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")


def _xdg(variable: str, default: str) -> Path:
    chosen = os.environ.get(variable, "")
    base = Path(chosen) if Path(chosen).is_absolute() else Path.home() / default
    return base / "octavo"


def state_home() -> Path:
    return _xdg("XDG_STATE_HOME", ".local/state") / "clusters"


def cache_home() -> Path:
    return _xdg("XDG_CACHE_HOME", ".cache")


@dataclass(frozen=True)
class ClusterRecord:
    """What `up` decided before it made anything, so that `down` can undo it."""

    name: str
    provider: str
    slot: int
    api_port: int
    nodes: tuple[str, ...] = ()
    gpus_per_node: int = 0
    # cgroups that were made, relative to each hierarchy's mount point
    cgroups: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class ClusterFolder:
    """The folder of one cluster."""

    name: str

    @property
    def path(self) -> Path:
        return state_home() / self.name

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    def node(self, node: str) -> Path:
        return self.path / node

    def process(self, node: str) -> Path:
        """The identity of the node's outermost process, see `processes.py`."""
        return self.path / node / "process"

    def record(self) -> ClusterRecord | None:
        """What a run before us left here, or None."""
        try:
            data = json.loads((self.path / "cluster.json").read_text())
        except FileNotFoundError:
            return None
        lists = {key: tuple(value) for key, value in data.items() if isinstance(value, list)}
        return ClusterRecord(**{**data, **lists})

    def write_record(self, record: ClusterRecord) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "cluster.json", json.dumps(asdict(record), indent=2))

    def supervised(self) -> list[str]:
        """The names of all nodes for which a process was ever started here."""
        return sorted(record.parent.name for record in self.path.glob("*/process"))


def cluster_folder(name: str) -> ClusterFolder:
    """The folder for the cluster `name`; raises `ClusterError` for a name unfit for interfaces."""
    if not _NAME.fullmatch(name):
        raise ClusterError(f"cluster name {name!r}: up to 20 of a-z, 0-9 and '-', a letter first")
    return ClusterFolder(name)


def known_clusters() -> list[ClusterRecord]:
    folders = sorted(state_home().glob("*/cluster.json"))
    found = (ClusterFolder(path.parent.name).record() for path in folders)
    return [record for record in found if record is not None]


def write_atomically(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Readers see the old text or the new one, also when we are killed between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    temporary.write_text(text)
    temporary.chmod(mode)
    temporary.replace(path)


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float = 900) -> Iterator[None]:
    """Holds an exclusive lock that the kernel drops when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"{path}: held by another run for {timeout_s:.0f} s"
                    ) from None
                time.sleep(0.1)
        yield

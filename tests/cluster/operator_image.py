"""The operator's image for tests: images/operator.Dockerfile on a Debian base made here by buildah.

    base        mmdebstrap minbase + Python, from apt's own sources   cached by suite and packages
    wheels      what octavo[operator] needs, by pip download          cached by requirements
    own wheel   this checkout; the image's last layer
Nothing is pulled from or pushed to a registry, and only the user's cache is written to.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import tempfile
import tomllib
from pathlib import Path

from images import context
from tests.cluster.errors import ClusterError, CommandFailed
from tests.cluster.node_setup import on_overlay
from tests.cluster.programs import Say
from tests.cluster.run import run
from tests.cluster.state import REPOSITORY, cache_home, locked

OPERATOR_IMAGE = "localhost/octavo-operator:test"
BASE_PACKAGES = ("ca-certificates", "python3", "python3-pip")
_DOCKERFILE = context.dockerfile(context.Extra.operator)


def operator_archive(say: Say) -> Path:
    """Builds `OPERATOR_IMAGE` unless nothing in it has changed, and returns its archive."""
    images = cache_home() / "images"
    with locked(images / "operator.lock"):
        target = images / f"operator-{_key()}.tar"
        if not target.exists():
            base, python_version = _base(images, say)
            with tempfile.TemporaryDirectory(dir=images) as scratch:
                _write_context(Path(scratch), python_version, say)
                say("building the operator's image")
                _buildah_bud(base, Path(scratch))
            _write_archive(target)
    return target


def _write_context(folder: Path, python_version: str, say: Say) -> None:
    try:
        wheels = context.wheels(
            context.Extra.operator, python_version, cache_home() / "wheels", say
        )
        context.write_context(folder, wheels)
    except subprocess.CalledProcessError as error:
        raise CommandFailed(str(error)) from None  # what failed has told why on the terminal


def _key() -> str:
    """A digest of all that goes into the image."""
    digest = hashlib.sha256(json.dumps([_os_release()["VERSION_CODENAME"], BASE_PACKAGES]).encode())
    project = tomllib.loads(context.PYPROJECT.read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    sources = [path for package in packages for path in (REPOSITORY / package).rglob("*")]
    own = [path for path in sources if path.is_file() and "__pycache__" not in path.parts]
    for path in sorted([*own, context.PYPROJECT, context.CONSTRAINTS, _DOCKERFILE]):
        digest.update(f"{path.relative_to(REPOSITORY)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _buildah(*words: str | Path) -> str:
    """Runs buildah with a storage of our own, so that the machine's is left alone."""
    storage = cache_home() / "buildah"
    roots: list[str | Path] = ["--root", storage / "root", "--runroot", storage / "run"]
    if on_overlay(storage):
        roots += ["--storage-driver", "vfs"]  # overlays do not stack up
    return run(["buildah", *roots, *words], timeout_s=900)


# ---- the base ----


def _base(images: Path, say: Say) -> tuple[str, str]:
    """The name of the base image in buildah's storage, and its Python's version such as 3.11."""
    suite = _os_release()["VERSION_CODENAME"]
    key = hashlib.sha256(json.dumps([suite, BASE_PACKAGES]).encode()).hexdigest()[:12]
    reference = f"localhost/octavo-base:{suite}-{key}"
    root = images / f"base-{suite}-{key}.tar"
    if not root.exists():
        _debootstrap(suite, root, say)
    if reference not in _known_images():
        with tempfile.TemporaryDirectory(dir=images) as scratch:
            folder = Path(scratch)
            (folder / "base.tar").hardlink_to(root)
            (folder / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
            _buildah("bud", "--isolation", "chroot", "--tag", reference, folder)
    return reference, _python_version(root)


def _known_images() -> dict[str, str]:
    """Name to id of the images in buildah's storage; intermediate ones have no name."""
    images = json.loads(_buildah("images", "--json"))
    return {name: image["id"] for image in images for name in image["names"] or ()}


def _os_release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    pairs = (line.split("=", 1) for line in lines if "=" in line)
    return {key: value.strip('"') for key, value in pairs}


def _debootstrap(suite: str, target: Path, say: Say) -> None:
    say(f"making the base image from {suite} packages (a minute, once)")
    temporary = target.with_name(f".{target.name}")
    run(
        [
            *("mmdebstrap", "--variant=minbase", "--format=tar", "--quiet"),
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            *(f"--include={','.join(BASE_PACKAGES)}", suite, temporary),
        ],
        timeout_s=900,
    )
    temporary.replace(target)


def _python_version(root: Path) -> str:
    with tarfile.open(root) as tar:
        target = tar.getmember("./usr/bin/python3").linkname
    version = Path(target).name.removeprefix("python")
    if not version.startswith("3."):
        raise ClusterError(f"{root}: /usr/bin/python3 leads to {target!r}, which names no version")
    return version


# ---- the image ----


def _buildah_bud(base: str, folder: Path) -> None:
    """Builds the image and forgets the one before, whose layers would pile up."""
    before = _known_images().get(OPERATOR_IMAGE)
    _buildah(
        *("bud", "--isolation", "chroot", "--layers", "--pull-never"),
        *("--build-arg", f"BASE_IMAGE={base}", "--tag", OPERATOR_IMAGE),
        *("--file", _DOCKERFILE, folder),
    )
    if before is not None and before != _known_images()[OPERATOR_IMAGE]:
        _buildah("rmi", before)


def _write_archive(target: Path) -> None:
    for old in target.parent.glob("operator-*.tar"):
        old.unlink()
    temporary = target.with_name(".operator.tar")
    temporary.unlink(missing_ok=True)
    _buildah("push", "--quiet", OPERATOR_IMAGE, f"docker-archive:{temporary}:{OPERATOR_IMAGE}")
    temporary.replace(target)

"""Images of a few files, written as an archive that `ctr images import` and `docker load` read.

No base, no registry, no builder: the Docker archive format is a tar of layers with two JSON files.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass
class Tree:
    """The files of one layer, owned by root; written in the order of the calls."""

    _entries: list[tuple[tarfile.TarInfo, bytes]] = field(default_factory=list)

    def folder(self, path: str, mode: int = 0o755) -> None:
        self._add(path, tarfile.DIRTYPE, mode)

    def link(self, path: str, target: str) -> None:
        self._add(path, tarfile.SYMTYPE, 0o777, linkname=target)

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._add(path, tarfile.REGTYPE, mode, content=content)

    def _add(
        self, path: str, kind: bytes, mode: int, *, linkname: str = "", content: bytes = b""
    ) -> None:
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.type, entry.mode, entry.linkname, entry.size = kind, mode, linkname, len(content)
        self._entries.append((entry, content))

    def to_tar(self) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for entry, content in self._entries:
                tar.addfile(entry, io.BytesIO(content))
        return out.getvalue()


def write_archive(path: Path, reference: str, tree: Tree, config: Mapping[str, object]) -> None:
    """Writes the image `reference` (such as localhost/pause:1) with one layer to `path`.

    `config` is the image's own: Entrypoint, Env, User, as in an OCI image configuration.
    """
    layer = tree.to_tar()
    image = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    described = json.dumps(image).encode()
    name = f"{hashlib.sha256(described).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": ["layer.tar"]}]
    archive = Tree()
    archive.file(name, described)
    archive.file("layer.tar", layer)
    archive.file("manifest.json", json.dumps(manifest).encode())
    path.write_bytes(archive.to_tar())

"""What was fetched, written beside the files: the proof that a folder is whole."""

from pathlib import Path

import msgspec

NAME = ".octavo-manifest.json"


class FileRecord(msgspec.Struct, frozen=True):
    path: str
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    uri: str
    revision: str
    """What the source resolved the URI to; empty where it has no revisions."""
    files: tuple[FileRecord, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def write(manifest: Manifest, folder: Path) -> None:
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    (folder / NAME).write_bytes(text)


def read_whole(folder: Path) -> Manifest | None:
    """None where the folder is not ours, or lacks what its manifest promises.

    Sizes are compared, not hashes: reading hundreds of gigabytes at each start would cost minutes.
    """
    try:
        manifest = msgspec.json.decode((folder / NAME).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None
    for record in manifest.files:
        path = folder / record.path
        if not path.is_file() or path.stat().st_size != record.size_bytes:
            return None
    return manifest

"""One file on its way: its parts, which of them are there, and the check of the whole.

name.part    as long as the file will be; parts are written in any order
name.parts   numbers of the parts that are whole, one a line; what a restart goes on from
name         the checked file
"""

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from octavo_engine.fetch.errors import ChecksumMismatch, DownloadFailed
from octavo_engine.fetch.files import RemoteFile
from octavo_engine.fetch.progress import gib

_READ_BYTES = 4 * 2**20


class StagedFile:
    """Used by several threads at once, each with a part of its own."""

    def __init__(self, file: RemoteFile, folder: Path, part_bytes: int) -> None:
        self.file = file
        self.path = folder / file.path
        self._part_bytes = part_bytes
        self._lock = threading.Lock()
        self._data = self.path.with_name(self.path.name + ".part")
        self._journal = self.path.with_name(self.path.name + ".parts")
        self._done = self._recall()
        self.is_resumed = bool(self._done)
        """Whether parts of an earlier run are used, so that a mismatch may be theirs."""

    @property
    def num_parts(self) -> int:
        return -(-self.file.size_bytes // self._part_bytes)

    @property
    def done_bytes(self) -> int:
        return sum(end - start for start, end in map(self.bounds, self._done))

    def missing(self) -> list[int]:
        return [idx for idx in range(self.num_parts) if idx not in self._done]

    def bounds(self, part_idx: int) -> tuple[int, int]:
        start = part_idx * self._part_bytes
        return start, min(start + self._part_bytes, self.file.size_bytes)

    def write(self, position: int, piece: bytes) -> None:
        try:
            with self._data.open("r+b") as data:
                data.seek(position)
                data.write(piece)
        except OSError as error:
            raise _no_room(self.path, error) from error

    def finish_part(self, part_idx: int) -> bool:
        """Whether that was the last one."""
        with self._lock:
            self._done.add(part_idx)
            with self._journal.open("a", encoding="ascii") as journal:
                journal.write(f"{part_idx}\n")
            return len(self._done) == self.num_parts

    def check(self) -> str:
        """The file under its own name, once it is what the source says. Returns its SHA-256.

        Raises ChecksumMismatch; nothing of the file is kept then.
        """
        sha256, git_sha1 = hashlib.sha256(), hashlib.sha1(usedforsecurity=False)
        git_sha1.update(f"blob {self.file.size_bytes}\0".encode())
        for piece in self._pieces():
            sha256.update(piece)
            git_sha1.update(piece)
        digest = self.file.digest
        if digest is not None:
            found = sha256.hexdigest() if digest.kind == "sha256" else git_sha1.hexdigest()
            if found != digest.hex.lower():
                self.forget()
                raise ChecksumMismatch(
                    f"{self.file.path} has {digest.kind} {found}, its source says {digest.hex}"
                )
        self._data.replace(self.path)
        self._journal.unlink(missing_ok=True)
        return sha256.hexdigest()

    def begin(self) -> None:
        """Makes room. Raises DownloadFailed."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._data.open("ab") as data:
                data.truncate(self.file.size_bytes)
        except OSError as error:
            raise _no_room(self.path, error) from error

    def forget(self) -> None:
        self._done.clear()
        self.is_resumed = False
        self._data.unlink(missing_ok=True)
        self._journal.unlink(missing_ok=True)

    def _pieces(self) -> Iterator[bytes]:
        with self._data.open("rb") as data:
            os.fsync(data.fileno())
            while piece := data.read(_READ_BYTES):
                yield piece

    def _recall(self) -> set[int]:
        """Parts of another size, or of a file that has another length now, are of no use."""
        if not self._data.exists() or self._data.stat().st_size != self.file.size_bytes:
            return set()
        if not self._journal.exists():
            return set()
        lines = self._journal.read_text(encoding="ascii").splitlines()
        return {idx for line in lines if line.isdigit() and (idx := int(line)) < self.num_parts}


def _no_room(path: Path, error: OSError) -> DownloadFailed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free_bytes = os.statvfs(path.parent).f_bavail * os.statvfs(path.parent).f_frsize
        return DownloadFailed(f"no room for {path.name}: {gib(free_bytes)} are free in the cache")
    return DownloadFailed(f"cannot write {path}: {error.strerror} (user {os.getuid()})")

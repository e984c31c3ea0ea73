"""The keys that clients may show: kept as hashes, read again when their file changes.

Knows no HTTP; `auth.py` asks it about each request.
"""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

import structlog

from octavo_engine.errors import ConfigError

log = structlog.get_logger(__name__)

_Signature = tuple[int, int, int]


class ApiKeys:
    """Keys given at the start and keys of a file; none at all means that everybody may ask."""

    def __init__(self, given: Iterable[str] = (), file: Path | None = None) -> None:
        """Raises ConfigError when the file cannot be read or holds no key."""
        self._given = _hashes(given)
        self._file = file
        self._from_file: frozenset[bytes] = frozenset()
        self._signature: _Signature | None = None
        if file is not None:
            self._read_at_start(file)

    @property
    def are_required(self) -> bool:
        return bool(self._given) or self._file is not None

    def allow(self, key: str) -> bool:
        """Whether `key` is one of them. Takes as long for a wrong key as for a right one."""
        self._refresh()
        shown = _hash(key)
        found = False
        for known in self._given | self._from_file:
            found |= hmac.compare_digest(shown, known)
        return found

    def _read_at_start(self, file: Path) -> None:
        try:
            self._signature = _signature(file)
            self._from_file = _read(file)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the API keys cannot be read: {file}: {error}") from error
        if not self._from_file:
            raise ConfigError(f"{file} holds no API key; one a line is expected")

    def _refresh(self) -> None:
        """Takes a changed file, also an empty one: then no key of it is good any more. One that
        cannot be read changes nothing, since secrets are replaced while they are mounted."""
        if self._file is None:
            return
        try:
            signature = _signature(self._file)
            if signature == self._signature:
                return
            keys = _read(self._file)
        except (OSError, UnicodeDecodeError) as error:
            if self._signature is not None:
                log.warning("API keys stay as they were", file=str(self._file), error=str(error))
            self._signature = None
            return
        self._signature, self._from_file = signature, keys
        log.info("API keys read again", file=str(self._file), count=len(keys))


def _read(file: Path) -> frozenset[bytes]:
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return _hashes(line for line in lines if not line.startswith("#"))


def _signature(file: Path) -> _Signature:
    status = file.stat()
    return status.st_mtime_ns, status.st_ino, status.st_size


def _hashes(keys: Iterable[str]) -> frozenset[bytes]:
    return frozenset(_hash(key) for key in keys if key)


def _hash(key: str) -> bytes:
    # Keys are long and random: a fast hash keeps them out of memory dumps and makes lengths equal.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

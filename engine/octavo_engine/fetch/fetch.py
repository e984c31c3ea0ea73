"""From a URI to a folder that is whole, and there at once or not at all.

Beside the folder `name`, in the cache that pods may share:

    .name.lock       held by the pod that fetches; the others wait for it
    .name.incoming   what is there so far; a restarted pod goes on from it
"""

import errno
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from octavo_engine.fetch import complete, files, manifest
from octavo_engine.fetch.errors import DownloadFailed
from octavo_engine.fetch.files import Repository
from octavo_engine.fetch.manifest import Manifest
from octavo_engine.fetch.pace import Pace
from octavo_engine.fetch.retry import Patience, patiently
from octavo_engine.fetch.secrets import Secrets
from octavo_engine.fetch.transfer import Transfer
from octavo_engine.fetch.uri import ModelUri

log = structlog.get_logger(__name__)
Tell = Callable[[str], None]

_PACE = Pace()


@dataclass(frozen=True)
class Fetched:
    manifest: Manifest
    was_there: bool
    seconds: float


def fetch(uri: ModelUri, folder: Path, secrets: Secrets, tell: Tell, pace: Pace = _PACE) -> Fetched:
    """The model's files into `folder`; nothing is asked of anybody where they are there already.

    Raises FetchError, and CheckpointError for a source that holds no complete model.
    """
    began_s = time.monotonic()
    with _lock(folder, tell, pace):
        found = manifest.read_whole(folder)
        if found is not None:
            return Fetched(found, True, time.monotonic() - began_s)
        if folder.exists():
            log.warning("incomplete_folder_removed", folder=str(folder))
            shutil.rmtree(folder)
        incoming = folder.with_name(f".{folder.name}.incoming")
        fetched = _fetch_into(incoming, uri, secrets, tell, pace)
        incoming.replace(folder)
    return Fetched(fetched, False, time.monotonic() - began_s)


def open_repository(uri: ModelUri, secrets: Secrets) -> Repository:
    """Only the chosen source's libraries are loaded."""
    if uri.scheme == "hf":
        from octavo_engine.fetch.hub import HuggingFaceHub

        return HuggingFaceHub(uri, secrets)
    if uri.scheme == "modelscope":
        from octavo_engine.fetch.modelscope import ModelScope

        return ModelScope(uri, secrets)
    if uri.scheme in ("s3", "gs"):
        from octavo_engine.fetch.buckets import Bucket

        return Bucket(uri, secrets)
    from octavo_engine.fetch.web import WebServer

    return WebServer(uri, secrets)


def _fetch_into(
    incoming: Path, uri: ModelUri, secrets: Secrets, tell: Tell, pace: Pace
) -> Manifest:
    try:
        incoming.mkdir(exist_ok=True)
    except OSError as error:
        raise DownloadFailed(f"cannot write to the cache: {error}") from error
    with closing(open_repository(uri, secrets)) as repository:
        listed = patiently(repository.listing, Patience(pace.first_pause_s))
        wanted = files.wanted(listed, uri.path if uri.is_file else "", str(uri))
        _drop_others(incoming, {file.path for file in wanted.files})
        log.info("fetch", uri=str(uri), revision=listed.revision, num_files=len(wanted.files))
        records = Transfer(repository, incoming, tell, pace).run(wanted)
    if uri.is_file:
        complete.check_gguf(incoming / records[0].path)
    else:
        complete.check_folder(incoming)
    made = Manifest(str(uri), listed.revision, records)
    manifest.write(made, incoming)
    return made


def _drop_others(incoming: Path, names: set[str]) -> None:
    """What an earlier run left of files that the source no longer has."""
    for path in incoming.rglob("*"):
        name = str(path.relative_to(incoming))
        if path.is_file() and name.removesuffix(".parts").removesuffix(".part") not in names:
            path.unlink()


@contextmanager
def _lock(folder: Path, tell: Tell, pace: Pace) -> Iterator[None]:
    """One fetch of a folder at a time, over all pods that share the cache; goes with its holder."""
    path = folder.with_name(f".{folder.name}.lock")
    try:
        file = path.open("a")
    except OSError as error:
        raise DownloadFailed(f"cannot write to the cache: {error}") from error
    with file:
        while not _try_lock(file.fileno(), path):
            tell("another pod fetches the same model into this cache")
            time.sleep(pace.lock_poll_s)
        yield


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise DownloadFailed(f"the cache's file system cannot lock {path}: {error}") from error
    return True

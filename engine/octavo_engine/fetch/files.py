"""The files of a model at its source: which there are, and which of them serving needs. Pure."""

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from octavo_engine.errors import CheckpointError

HashKind = Literal["sha256", "git-sha1"]


@dataclass(frozen=True)
class Digest:
    kind: HashKind
    hex: str


@dataclass(frozen=True)
class RemoteFile:
    path: str
    """Where it goes, relative to the model's folder."""
    key: str
    """Its name at the source."""
    size_bytes: int
    digest: Digest | None
    """None: the source tells none, so only the size is checked."""


@dataclass(frozen=True)
class Listing:
    revision: str
    """What exactly the source resolved the URI to; empty where it has no revisions."""
    files: tuple[RemoteFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class Repository(Protocol):
    """One source of one model. Used by several threads at once."""

    def listing(self) -> Listing:
        """All files, wanted or not. Raises FetchError, TemporaryFailure."""
        ...

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` to before `end`, in pieces. Raises the same."""
        ...

    def close(self) -> None: ...


_SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".tiktoken", ".txt")
_USELESS_JSON = ("trainer_state.json", "training_args.json")


def wanted(listing: Listing, file: str, source: str) -> Listing:
    """Of a folder: weights in safetensors, configs and tokenizer; of the rest nothing.

    file: the one .gguf file that is wanted instead; empty for the folder.
    Raises CheckpointError for a source that holds nothing to serve.
    """
    if file:
        name = posixpath.basename(file)
        chosen = [one for one in listing.files if posixpath.basename(one.path) == name]
        if not chosen:
            raise CheckpointError(f"{source} holds no {name}")
        return Listing(listing.revision, (chosen[0],))
    top = [one for one in listing.files if "/" not in one.path]
    chosen = [one for one in top if one.path.endswith(_SUFFIXES) and one.path not in _USELESS_JSON]
    weights = [one for one in chosen if one.path.endswith(".safetensors")]
    if not weights:
        raise CheckpointError(f"{source} holds no .safetensors file{_instead(top)}")
    if any(one.path.startswith("model") for one in weights):
        # The same weights once more, as their maker's own tools want them.
        chosen = [one for one in chosen if not one.path.startswith("consolidated")]
    return Listing(listing.revision, tuple(sorted(chosen, key=lambda one: one.path)))


def _instead(files: Iterable[RemoteFile]) -> str:
    names = sorted(one.path for one in files)
    gguf = [name for name in names if name.endswith(".gguf")]
    if gguf:
        return f"; to serve a .gguf file name it in the URI: {', '.join(gguf[:8])}"
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    if pickles:
        return f", only {', '.join(pickles[:8])}, which would run code when read"
    return f"; it holds {', '.join(names[:8]) or 'nothing'}"

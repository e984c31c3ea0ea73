"""s3:// and gs://: a folder or a .gguf file in a bucket, by obstore.

One library without dependencies of its own speaks both, with every way of signing in that their
vendors have. Where no Secret is given, it finds the pod's own identity, else asks unsigned.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from octavo_engine.fetch import checksums
from octavo_engine.fetch.errors import DownloadFailed, TemporaryFailure
from octavo_engine.fetch.files import Digest, Listing, RemoteFile
from octavo_engine.fetch.secrets import Secrets
from octavo_engine.fetch.uri import ModelUri

if TYPE_CHECKING:
    from obstore.store import GCSStore, S3Store

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_PIECE_BYTES = 1 << 20
_S3_OPTIONAL = ("AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL")
_GS_KEY = "GOOGLE_SERVICE_ACCOUNT_KEY"


class Bucket:
    def __init__(self, uri: ModelUri, secrets: Secrets) -> None:
        self._uri = uri
        self._store = _opened(uri, secrets)
        self._folder = uri.path.rpartition("/")[0] if uri.is_file else uri.path

    def listing(self) -> Listing:
        import obstore

        prefix = f"{self._folder}/" if self._folder else None
        with _Errors(self._uri):
            entries = [entry for page in obstore.list(self._store, prefix) for entry in page]
        sizes = {entry["path"].removeprefix(prefix or ""): entry["size"] for entry in entries}
        hashes = self._hashes() if checksums.NAME in sizes else {}
        return Listing(
            "",
            tuple(
                RemoteFile(
                    name,
                    self._key(name),
                    size_bytes,
                    Digest("sha256", hashes[name]) if name in hashes else None,
                )
                for name, size_bytes in sorted(sizes.items())
            ),
        )

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        import obstore

        with _Errors(self._uri):
            answer = obstore.get(self._store, file.key, options={"range": (start, end)})
            for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
                yield bytes(piece)

    def close(self) -> None:
        """Its connections are the library's own."""

    def _hashes(self) -> dict[str, str]:
        import obstore

        with _Errors(self._uri):
            content = bytes(obstore.get(self._store, self._key(checksums.NAME)).bytes())
        return checksums.parse(content.decode(), f"{self._uri}/{checksums.NAME}")

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}" if self._folder else name


def _opened(uri: ModelUri, secrets: Secrets) -> "S3Store | GCSStore":
    """Raises DownloadFailed where the library cannot begin, as without any certificates."""
    from obstore.exceptions import BaseError

    try:
        return _s3(uri, secrets) if uri.scheme == "s3" else _gs(uri, secrets)
    except BaseError as error:
        raise DownloadFailed(f"{uri}: {' '.join(str(error).split())}") from error


def _s3(uri: ModelUri, secrets: Secrets) -> "S3Store":
    from obstore.store import S3Store

    given = secrets.require("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    given |= {name: value for name in _S3_OPTIONAL if (value := secrets.get(name))}
    endpoint = given.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL", "")
    options: Any = {name.lower(): value for name, value in given.items()}
    if endpoint.startswith("http://"):
        options["aws_allow_http"] = "true"
    if not given and not _has_identity(os.environ, "AWS_"):
        options["aws_skip_signature"] = "true"
    return S3Store(uri.place, config=options, **_RETRY)


def _gs(uri: ModelUri, secrets: Secrets) -> "GCSStore":
    from obstore.store import GCSStore

    options: Any = {name.lower(): value for name, value in secrets.require(_GS_KEY).items()}
    return GCSStore(uri.place, config=options, **_RETRY)


# Our own retries go on where a read broke off; the library's begin a request anew.
_RETRY: Mapping[str, Any] = {"retry_config": {"max_retries": 2}}


def _has_identity(environment: Mapping[str, str], prefix: str) -> bool:
    names = ("ACCESS_KEY_ID", "WEB_IDENTITY_TOKEN_FILE", "CONTAINER_CREDENTIALS_FULL_URI")
    return any(environment.get(prefix + name) for name in names)


class _Errors:
    """Turns the library's errors into ours."""

    def __init__(self, uri: ModelUri) -> None:
        self._uri = uri

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from obstore.exceptions import (
            BaseError,
            NotFoundError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        if not isinstance(error, BaseError | OSError):
            return
        sentence = " ".join(str(error).split("\n\nDebug source")[0].split())
        text = f"{self._uri}: {sentence}"
        # A listing's errors are all of one kind, and tell the status in words alone.
        status = found[1] if (found := _STATUS.search(sentence)) else ""
        if isinstance(error, NotFoundError | FileNotFoundError) or status == "404":
            raise DownloadFailed(text) from error
        is_refused = isinstance(
            error, PermissionDeniedError | PermissionError | UnauthenticatedError
        )
        if is_refused or status in ("401", "403"):
            raise DownloadFailed(f"{text}; is a secretRef needed?") from error
        raise TemporaryFailure(text) from error

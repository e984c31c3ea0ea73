"""hf://: a Hugging Face hub, or a mirror that HF_ENDPOINT names.

Spoken to directly: one call lists a revision, and files are plain ranged downloads. The hub's own
library would bring a second HTTP stack, another layout on disk, and no check of small files.
"""

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from octavo_engine.fetch import http
from octavo_engine.fetch.errors import DownloadFailed
from octavo_engine.fetch.files import Digest, Listing, RemoteFile
from octavo_engine.fetch.secrets import Secrets
from octavo_engine.fetch.uri import ModelUri

_ENDPOINT = "https://huggingface.co"
_TOKEN = "HF_TOKEN"


class HuggingFaceHub:
    def __init__(self, uri: ModelUri, secrets: Secrets) -> None:
        token = secrets.require(_TOKEN).get(_TOKEN) or os.environ.get(_TOKEN)
        self._client = http.make_client({"Authorization": f"Bearer {token}"} if token else None)
        self._endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
        self._name = uri.place
        self._revision = uri.revision or "main"

    def listing(self) -> Listing:
        if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0", "false"):
            raise DownloadFailed(
                f"{self._place} cannot be asked: HF_HUB_OFFLINE is set; "
                "where there is no network use pvc://, oci:// or a mirror (HF_ENDPOINT)"
            )
        url = f"{self._endpoint}/api/models/{self._name}/revision/{quote(self._revision, safe='')}"
        answer = http.ask(self._client, url, blobs="true")
        self._explain(answer.status_code, answer.headers.get("X-Error-Code"))
        http.check(answer, url)
        try:
            info = answer.json()
            # From here on a branch that moves is no matter: files come from this very commit.
            self._revision = str(info["sha"])
            return Listing(self._revision, tuple(_file(entry) for entry in info["siblings"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DownloadFailed(f"{url} does not answer as a hub does: {error!r}") from error

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        path = f"{quote(self._revision, safe='')}/{quote(file.key)}"
        url = f"{self._endpoint}/{self._name}/resolve/{path}"
        return http.read_range(self._client, url, start, end)

    def close(self) -> None:
        self._client.close()

    @property
    def _place(self) -> str:
        return f"{self._name} at {self._endpoint}"

    def _explain(self, status: int, code: str | None) -> None:
        """Raises DownloadFailed for what the hub itself has a word for."""
        if code == "GatedRepo":
            raise DownloadFailed(
                f"{self._place} is gated: its terms must be accepted by the owner of {_TOKEN}"
            )
        if code == "RevisionNotFound":
            raise DownloadFailed(f"{self._place} has no revision {self._revision!r}")
        if code == "RepoNotFound" or status in (401, 404):
            raise DownloadFailed(
                f"{self._place} does not exist, or is private: then it needs a secretRef "
                f"with {_TOKEN}"
            )


def _file(entry: dict[str, Any]) -> RemoteFile:
    """Large files are known by their SHA-256, small ones as git knows them."""
    lfs = entry.get("lfs")
    digest = Digest("sha256", lfs["sha256"]) if lfs else None
    if digest is None and entry.get("blobId"):
        digest = Digest("git-sha1", entry["blobId"])
    return RemoteFile(entry["rfilename"], entry["rfilename"], int(entry["size"]), digest)

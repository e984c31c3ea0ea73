"""modelscope://: ModelScope, or the host that MODELSCOPE_DOMAIN names.

Spoken to directly: the three calls that are needed do not justify its library.
"""

import os
from collections.abc import Iterator
from typing import Any

import httpx

from octavo_engine.fetch import http
from octavo_engine.fetch.errors import DownloadFailed
from octavo_engine.fetch.files import Digest, Listing, RemoteFile
from octavo_engine.fetch.secrets import Secrets
from octavo_engine.fetch.uri import ModelUri

_DOMAIN = "www.modelscope.cn"


class ModelScope:
    def __init__(self, uri: ModelUri, secrets: Secrets) -> None:
        name = "MODELSCOPE_API_TOKEN"
        token = secrets.require(name).get(name) or os.environ.get(name)
        domain = os.environ.get("MODELSCOPE_DOMAIN") or _DOMAIN
        root = domain if "://" in domain else f"https://{domain}"
        self._uri = uri
        self._repository = f"{root.rstrip('/')}/api/v1/models/{uri.place}/repo"
        self._revision = uri.revision or "master"
        self._client = http.make_client({"Cookie": f"m_session_id={token}"} if token else None)

    def listing(self) -> Listing:
        url = f"{self._repository}/files"
        answer = http.ask(self._client, url, Revision=self._revision, Recursive="True")
        http.check(answer, url)
        try:
            found = answer.json()["Data"]["Files"]
            files = [_file(entry) for entry in found if entry["Type"] == "blob"]
        except (ValueError, KeyError, TypeError) as error:
            raise DownloadFailed(f"{url} does not answer as ModelScope does: {error!r}") from error
        return Listing(self._revision, tuple(files))

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        query = httpx.QueryParams(Revision=self._revision, FilePath=file.key)
        return http.read_range(self._client, f"{self._repository}?{query}", start, end)

    def close(self) -> None:
        self._client.close()


def _file(entry: dict[str, Any]) -> RemoteFile:
    sha256 = entry.get("Sha256")
    digest = Digest("sha256", sha256) if sha256 else None
    return RemoteFile(entry["Path"], entry["Path"], int(entry["Size"]), digest)

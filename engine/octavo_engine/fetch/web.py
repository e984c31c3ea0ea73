"""https://: a .gguf file, or a folder on a plain web server.

A web server lists nothing, so the names are those that a checkpoint has: the shards of its index,
and the usual ones of configs and tokenizers. A SHA256SUMS beside them is the whole list.
"""

import base64
import json
from collections.abc import Iterable, Iterator

from octavo_engine.fetch import checksums, http
from octavo_engine.fetch.errors import DownloadFailed, SecretMissing
from octavo_engine.fetch.files import Digest, Listing, RemoteFile
from octavo_engine.fetch.secrets import Secrets
from octavo_engine.fetch.uri import ModelUri

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "quantize_config.json",
    "quant_config.json",
)


class WebServer:
    def __init__(self, uri: ModelUri, secrets: Secrets) -> None:
        self._client = http.make_client(_headers(secrets))
        self._is_file = uri.is_file
        url = f"{uri.scheme}://{uri.place}/{uri.path}"
        self._folder, _, self._name = url.rpartition("/") if uri.is_file else (url, "", "")

    def listing(self) -> Listing:
        sums = self._text(checksums.NAME)
        hashes = {} if sums is None else checksums.parse(sums, self._url(checksums.NAME))
        if self._is_file:
            names: Iterable[str] = (self._name,)
        elif hashes:
            names = hashes
        else:
            names = (*_SMALL, *self._weights())
        files = [self._file(name, hashes) for name in sorted(names)]
        return Listing("", tuple(file for file in files if file is not None))

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        return http.read_range(self._client, self._url(file.key), start, end)

    def close(self) -> None:
        self._client.close()

    def _weights(self) -> list[str]:
        text = self._text(_INDEX)
        if text is None:
            return [_SINGLE]
        try:
            return [_INDEX, *sorted(set(json.loads(text)["weight_map"].values()))]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DownloadFailed(f"{self._url(_INDEX)} is not an index: {error!r}") from error

    def _text(self, name: str) -> str | None:
        answer = http.ask(self._client, self._url(name))
        if answer.status_code in (404, 410):
            return None
        http.check(answer, self._url(name))
        return answer.text

    def _file(self, name: str, hashes: dict[str, str]) -> RemoteFile | None:
        """None for a file that is not there, where it need not be."""
        url = self._url(name)
        answer = http.ask(self._client, url, "HEAD")
        if answer.status_code in (404, 410) and name in _SMALL and name not in hashes:
            return None
        http.check(answer, url)
        size = answer.headers.get("Content-Length")
        if size is None:
            raise DownloadFailed(f"{url} does not tell its size (Content-Length)")
        digest = Digest("sha256", hashes[name]) if name in hashes else None
        return RemoteFile(name, name, int(size), digest)

    def _url(self, name: str) -> str:
        return f"{self._folder}/{name}"


def _headers(secrets: Secrets) -> dict[str, str]:
    if not secrets.is_given:
        return {}
    token, user = secrets.get("HTTP_TOKEN"), secrets.get("HTTP_USERNAME")
    if token:
        return {"Authorization": f"Bearer {token}"}
    if user:
        pair = f"{user}:{secrets.require('HTTP_PASSWORD')['HTTP_PASSWORD']}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    raise SecretMissing(
        "the Secret of spec.model.secretRef lacks HTTP_TOKEN, or HTTP_USERNAME and HTTP_PASSWORD"
    )

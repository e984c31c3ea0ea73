"""Ranged reading over HTTP, and what each answer means. Shared by the sources that speak it."""

from collections.abc import Iterator, Mapping

import httpx

from octavo_engine.fetch.errors import DownloadFailed, TemporaryFailure

_TIMEOUT = httpx.Timeout(30.0, read=60.0)
_TEMPORARY = frozenset({408, 425, 429})
_PIECE_BYTES = 1 << 20


def make_client(headers: Mapping[str, str] | None = None) -> httpx.Client:
    """Proxies and certificates come from the usual variables of the environment.

    Where a server sends us on to another host, keys and cookies stay behind.
    """
    return httpx.Client(headers=dict(headers or {}), timeout=_TIMEOUT, follow_redirects=True)


def ask(client: httpx.Client, url: str, method: str = "GET", **query: str) -> httpx.Response:
    """The answer, whatever its status. Raises TemporaryFailure where there is none."""
    try:
        return client.request(
            method, url, params=query or None, headers={"Accept-Encoding": "identity"}
        )
    except httpx.HTTPError as error:
        raise TemporaryFailure(f"{url}: {_words(error)}") from error


def read_range(client: httpx.Client, url: str, start: int, end: int) -> Iterator[bytes]:
    """Also from servers that do not know ranges: what comes before `start` is thrown away."""
    try:
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        with client.stream("GET", url, headers=headers) as answer:
            check(answer, url)
            position = start if answer.status_code == httpx.codes.PARTIAL_CONTENT else 0
            for piece in answer.iter_raw(_PIECE_BYTES):
                wanted = piece[max(0, start - position) : max(0, end - position)]
                position += len(piece)
                if wanted:
                    yield wanted
                if position >= end:
                    return
    except httpx.HTTPError as error:
        raise TemporaryFailure(f"{url}: {_words(error)}") from error


def check(answer: httpx.Response, url: str) -> None:
    """Raises DownloadFailed, or TemporaryFailure where asking again may help."""
    status = answer.status_code
    if status < 300:
        return
    text = f"{url} answers {status} {answer.reason_phrase}".rstrip()
    if status in _TEMPORARY or status >= 500:
        raise TemporaryFailure(text)
    if status in (401, 403):
        raise DownloadFailed(f"{text}: the source does not let us in; is a secretRef needed?")
    raise DownloadFailed(text)


def _words(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__

"""A fake of the places that models come from: a Hugging Face hub, ModelScope, S3, a web server.

It speaks of each just what fetching asks, over one folder on disk:

    FOLDER/org/name/...     the files of hf://org/name and modelscope://org/name
    FOLDER/bucket/...       the objects of s3://bucket and gs://bucket
    FOLDER/any/path         the files of http://host/any/path
That the hub's part is true to the real one is tested with the hub's own client. A test can make it
fail: see `Faults`. As a program: `python fake_model_server.py FOLDER PORT`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import xml.sax.saxutils
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "1234567890abcdef1234567890abcdef12345678"
LFS_BYTES = 1000
"""Files from this size on are known by SHA-256, as large ones are on a hub."""


@dataclass
class Faults:
    """What goes wrong; each counts down."""

    num_unavailable: int = 0
    """Reads of files that are answered with 503."""
    num_cut: int = 0
    """Reads of files that break off half way."""
    num_garbled: int = 0
    """Reads of files with a byte turned."""
    knows_ranges: bool = True
    token: str | None = None
    """What clients must show."""
    gated: set[str] = field(default_factory=set)


class FakeModelServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((host, port), _Handler)
        self.folder = folder
        self.faults = Faults()
        self.lock = threading.Lock()
        self.sent_bytes: Counter[str] = Counter()
        """File name -> bytes of it that went out."""
        self.paths: list[str] = []
        """Of every request, in order."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, fault: str) -> bool:
        """Whether one of the fault is left; it is used up by this."""
        with self.lock:
            left = getattr(self.faults, fault)
            if left:
                setattr(self.faults, fault, left - 1)
            return bool(left)


@contextmanager
def running(folder: Path) -> Iterator[FakeModelServer]:
    with FakeModelServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: FakeModelServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        path, query = unquote(split.path), parse_qs(split.query, keep_blank_values=True)
        with self.server.lock:
            self.server.paths.append(self.path)
        words = path.strip("/").split("/")
        if not self._is_allowed():
            # S3 says 403 where others say 401.
            status = 403 if "list-type" in query else 401
            self._json(status, {"error": "who are you?"})
        elif words[:2] == ["api", "models"]:
            self._hub_info("/".join(words[2:4]), words[5] if len(words) > 5 else "main")
        elif words[:3] == ["api", "v1", "models"]:
            self._modelscope("/".join(words[3:5]), words[5:], query)
        elif len(words) > 4 and words[2] == "resolve":
            self._hub_file("/".join(words[:2]), words[3], "/".join(words[4:]))
        elif "list-type" in query:
            self._bucket(words[0], query.get("prefix", [""])[0])
        else:
            self._file(path.removeprefix("/cdn"))

    do_HEAD = do_GET  # noqa: N815 - the base class asks for this name

    def _is_allowed(self) -> bool:
        token = self.server.faults.token
        if token is None or self.path.startswith("/cdn/"):
            return True
        shown = self.headers.get("Authorization", "") + self.headers.get("Cookie", "")
        return token in shown

    def _hub_info(self, name: str, revision: str) -> None:
        folder = self.server.folder / name
        if name in self.server.faults.gated:
            self._json(403, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
        elif not folder.is_dir():
            self._json(401, {"error": "no such repository"}, {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", COMMIT, "v1"):
            self._json(404, {"error": "no such revision"}, {"X-Error-Code": "RevisionNotFound"})
        else:
            siblings = [_sibling(folder, path) for path in _files(folder)]
            self._json(200, {"id": name, "sha": COMMIT, "siblings": siblings})

    def _hub_file(self, name: str, revision: str, path: str) -> None:
        file = self.server.folder / name / path
        host = self.headers["Host"]
        if revision != COMMIT:
            self._json(404, {"error": f"asked for {revision}, which may have moved since"})
        elif file.is_file() and file.stat().st_size >= LFS_BYTES:
            self._answer(302, b"", {"Location": f"http://{host}/cdn/{name}/{path}"})
        else:
            self._file(f"{name}/{path}")

    def _modelscope(self, name: str, rest: list[str], query: dict[str, list[str]]) -> None:
        folder = self.server.folder / name
        if rest == ["repo"]:
            self._file(f"{name}/{query['FilePath'][0]}")
        elif folder.is_dir():
            found = [
                {
                    "Path": path,
                    "Type": "blob",
                    "Size": (folder / path).stat().st_size,
                    "Sha256": _sha256(folder / path),
                }
                for path in _files(folder)
            ]
            self._json(200, {"Code": 200, "Data": {"Files": [*found, {"Type": "tree"}]}})
        else:
            self._json(404, {"Code": 10010205001})

    def _bucket(self, bucket: str, prefix: str) -> None:
        folder = self.server.folder / bucket
        contents = "".join(
            f"<Contents><Key>{xml.sax.saxutils.escape(path)}</Key>"
            f"<Size>{(folder / path).stat().st_size}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            for path in _files(folder)
            if path.startswith(prefix)
        )
        text = f"<ListBucketResult><Name>{bucket}</Name>{contents}</ListBucketResult>"
        self._answer(200, text.encode(), {"Content-Type": "application/xml"})

    def _file(self, path: str) -> None:
        file = self.server.folder / path.strip("/")
        if not file.is_file():
            self._answer(404, b"not here", {})
        elif self.command == "GET" and self.server.take("num_unavailable"):
            self._answer(503, b"later", {})
        else:
            self._content(file.name, file.read_bytes())

    def _content(self, name: str, content: bytes) -> None:
        headers = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "ETag": '"x"'}
        size = len(content)
        asked = self.headers.get("Range")
        status = 200
        if asked and self.server.faults.knows_ranges:
            first, last = asked.removeprefix("bytes=").split("-")
            start, end = int(first), min(int(last or size), size - 1)
            content = content[start : end + 1]
            headers["Content-Range"] = f"bytes {start}-{end}/{size}"
            status = 206
        if self.command == "GET":
            if self.server.take("num_garbled"):
                content = bytes([content[0] ^ 1]) + content[1:]
            if self.server.take("num_cut"):
                self._cut(status, content, headers)
                return
            with self.server.lock:
                self.server.sent_bytes[name] += len(content)
        self._answer(status, content, headers)

    def _cut(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self._head(status, len(content), headers)
        self.wfile.write(content[: len(content) // 2])
        self.close_connection = True

    def _json(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self._answer(status, content, {"Content-Type": "application/json", **(headers or {})})

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self._head(status, len(content), headers)
        if self.command != "HEAD":
            self.wfile.write(content)

    def _head(self, status: int, size: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _sibling(folder: Path, path: str) -> dict[str, Any]:
    content = (folder / path).read_bytes()
    blob_id = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    found: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": blob_id}
    if len(content) >= LFS_BYTES:
        sha256 = hashlib.sha256(content).hexdigest()
        found["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
    return found


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    FakeModelServer(Path(sys.argv[1]), "0.0.0.0", int(sys.argv[2])).serve_forever()

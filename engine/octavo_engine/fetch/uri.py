"""A model's URI, taken apart. Knows the schemes that are fetched, and nothing of how."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from octavo_engine.errors import ConfigError

Scheme = Literal["hf", "modelscope", "s3", "gs", "https", "http"]

_HUB = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+))?(?:/(.+))?", re.ASCII)
_PLACE = re.compile(r"([^/@?#]+)(?:/(.*))?")
_FORMS = {
    "hf": "hf://org/name, hf://org/name@revision, or either with /file.gguf",
    "modelscope": "modelscope://org/name, modelscope://org/name@revision, or with /file.gguf",
    "s3": "s3://bucket/folder or s3://bucket/file.gguf",
    "gs": "gs://bucket/folder or gs://bucket/file.gguf",
    "https": "https://host/folder or https://host/file.gguf",
    "http": "http://host/folder or http://host/file.gguf",
}


@dataclass(frozen=True)
class ModelUri:
    scheme: Scheme
    place: str
    """org/name, bucket, or host with port."""
    path: str
    """Inside the place: a folder or a .gguf file; empty for all of it."""
    revision: str | None = None

    @property
    def is_file(self) -> bool:
        return self.path.endswith(".gguf")

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        path = f"/{self.path}" if self.path else ""
        return f"{self.scheme}://{self.place}{revision}{path}"


def parse(text: str) -> ModelUri:
    """Raises ConfigError that says which form the scheme has."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in get_args(Scheme):
        raise ConfigError(f"{text!r} is no URI to fetch: {', '.join(_FORMS)} are")
    is_hub = scheme in ("hf", "modelscope")
    match = (_HUB if is_hub else _PLACE).fullmatch(rest)
    path = (match[3] if is_hub else match[2]) if match else None
    path = (path or "").strip("/")
    if match is None or ".." in path.split("/") or (is_hub and path and path[-5:] != ".gguf"):
        raise ConfigError(f"{text!r} must have the form {_FORMS[scheme]}")
    return ModelUri(scheme, match[1], path, match[2] if is_hub else None)  # type: ignore[arg-type]  # the pattern admits only the schemes

"""From `spec.model` to what a pod mounts and what the engine is told to serve.

Holds one class for each way in which a model's files come. Knows nothing of the rest of the pod.
"""

import hashlib
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from octavo_operator.errors import InvalidService
from octavo_operator.kinds import Manifest
from octavo_operator.reasons import Reason

MOUNT_PATH = "/model"
VOLUME_NAME = "model"
_MAX_SLUG_LEN = 40
_CLAIM_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class ModelSource(Protocol):
    @property
    def volume(self) -> Manifest:
        """The pod's volume that holds the model's files."""

    @property
    def mount(self) -> Manifest:
        """How the engine's container mounts it."""

    @property
    def serve_path(self) -> str:
        """The path in the container that `octavo serve` is given."""


@dataclass(frozen=True)
class NodePath:
    """file:///path: a folder or a .gguf file on the node."""

    path: str

    @property
    def volume(self) -> Manifest:
        # Without a type the kubelet would make an empty folder of a path that is not there.
        kind = "File" if self._is_file else "Directory"
        return {"name": VOLUME_NAME, "hostPath": {"path": self.path, "type": kind}}

    @property
    def mount(self) -> Manifest:
        return {"name": VOLUME_NAME, "mountPath": self.serve_path, "readOnly": True}

    @property
    def serve_path(self) -> str:
        # The engine tells a GGUF file by its name, so a file keeps it.
        return f"{MOUNT_PATH}/{posixpath.basename(self.path)}" if self._is_file else MOUNT_PATH

    @property
    def _is_file(self) -> bool:
        return self.path.endswith(".gguf")


@dataclass(frozen=True)
class Claim:
    """pvc://claim/path: a folder or a .gguf file in a PersistentVolumeClaim of the namespace."""

    name: str
    path: str

    @property
    def volume(self) -> Manifest:
        source = {"claimName": self.name, "readOnly": True}
        return {"name": VOLUME_NAME, "persistentVolumeClaim": source}

    @property
    def mount(self) -> Manifest:
        return {"name": VOLUME_NAME, "mountPath": MOUNT_PATH, "readOnly": True}

    @property
    def serve_path(self) -> str:
        # The whole claim is mounted: a missing subPath would leave the pod waiting without words.
        return f"{MOUNT_PATH}/{self.path}" if self.path else MOUNT_PATH


@dataclass(frozen=True)
class Image:
    """oci://reference#path: an image whose files are mounted; the node pulls it."""

    reference: str
    path: str

    @property
    def volume(self) -> Manifest:
        return {"name": VOLUME_NAME, "image": {"reference": self.reference}}

    @property
    def mount(self) -> Manifest:
        return {"name": VOLUME_NAME, "mountPath": MOUNT_PATH, "readOnly": True}

    @property
    def serve_path(self) -> str:
        return f"{MOUNT_PATH}/{self.path}" if self.path else MOUNT_PATH


@dataclass(frozen=True)
class Fetched:
    """A model that an init container fetches into a cache, in a folder of its own there."""

    uri: str
    cache: Manifest
    """The volume without its name."""
    refresh: str

    @property
    def volume(self) -> Manifest:
        return {"name": VOLUME_NAME, **self.cache}

    @property
    def mount(self) -> Manifest:
        return {"name": VOLUME_NAME, "mountPath": MOUNT_PATH, "readOnly": True}

    @property
    def folder(self) -> str:
        """Other models may lie in the same cache, and older files of this one that still serve."""
        digest = hashlib.sha256(f"{self.uri}\n{self.refresh}".encode()).hexdigest()[:10]
        name = re.sub(r"[^A-Za-z0-9.]+", "-", self.uri.partition("://")[2]).strip("-.")
        return f"{MOUNT_PATH}/{name[-_MAX_SLUG_LEN:].strip('-.')}-{digest}"

    @property
    def serve_path(self) -> str:
        is_file = self.uri.endswith(".gguf")
        return f"{self.folder}/{posixpath.basename(self.uri)}" if is_file else self.folder


EMPTY_CACHE: Manifest = {"emptyDir": {}}


def parse(uri: str, cache: Manifest | None = None, refresh: str = "") -> ModelSource:
    """`cache`: a volume without its name, for what is fetched.

    Raises InvalidService for a scheme or path that cannot be served.
    """
    scheme, separator, rest = uri.partition("://")
    if ".." in rest.split("/"):
        raise _invalid(uri, "must hold no '..' segment")
    if separator and scheme in _IN_PLACE:
        return _IN_PLACE[scheme](uri, rest)
    form = _FETCHED.get(scheme) if separator else None
    if form is None:
        schemes = ", ".join(f"{name}://" for name in (*_FETCHED, *_IN_PLACE))
        raise _invalid(uri, f"must begin with one of {schemes}")
    if not re.fullmatch(form, rest, re.ASCII):
        raise _invalid(uri, "must name a model of its scheme, as in hf://org/name@revision")
    return Fetched(uri, EMPTY_CACHE if cache is None else cache, refresh)


def _node_path(uri: str, rest: str) -> NodePath:
    path = posixpath.normpath(rest)
    if not rest.startswith("/") or path.strip("/") == "":
        raise _invalid(uri, "must hold an absolute path other than /, as in file:///models/x")
    return NodePath(path)


def _claim(uri: str, rest: str) -> Claim:
    claim, _, path = rest.partition("/")
    if not _CLAIM_NAME.fullmatch(claim):
        raise _invalid(uri, "must name a claim of this namespace, as in pvc://claim/path")
    return Claim(claim, path.strip("/"))


def _image(uri: str, rest: str) -> Image:
    reference, _, path = rest.partition("#")
    if not re.fullmatch(r"[a-z0-9][A-Za-z0-9._:/@-]*", reference):
        raise _invalid(uri, "must name an image, as in oci://registry.example/models/name:tag")
    return Image(reference, path.strip("/"))


_IN_PLACE: Mapping[str, Callable[[str, str], ModelSource]] = {
    "oci": _image,
    "pvc": _claim,
    "file": _node_path,
}
_HUB_NAME = r"[\w.-]+/[\w.-]+(@[\w.-]+)?(/.+\.gguf)?"
_BUCKET = r"[a-z0-9][a-z0-9._-]+(/.*)?"
_FETCHED: Mapping[str, str] = {
    "hf": _HUB_NAME,
    "modelscope": _HUB_NAME,
    "s3": _BUCKET,
    "gs": _BUCKET,
    "https": r"[^/@?#]+/[^?#]+",
}
"""Scheme -> form of what follows it."""


def _invalid(uri: str, rule: str) -> InvalidService:
    return InvalidService(Reason.INVALID_MODEL_URI, f"spec.model.uri {uri!r} {rule}")

"""From `spec.model.uri` to what a pod mounts and what the engine is told to serve.

Holds one class for each scheme. Knows nothing of the rest of the pod.
"""

import posixpath
import re
from dataclasses import dataclass
from typing import Protocol

from octavo_operator.errors import InvalidService
from octavo_operator.kinds import Manifest
from octavo_operator.reasons import Reason

MOUNT_PATH = "/model"
VOLUME_NAME = "model"
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


def parse(uri: str) -> ModelSource:
    """Raises InvalidService for a scheme or path that cannot be served."""
    scheme, separator, rest = uri.partition("://")
    if ".." in rest.split("/"):
        raise _invalid(uri, "must hold no '..' segment")
    if separator and scheme == "file":
        path = posixpath.normpath(rest)
        if not rest.startswith("/") or path.strip("/") == "":
            raise _invalid(uri, "must hold an absolute path other than /, as in file:///models/x")
        return NodePath(path)
    if separator and scheme == "pvc":
        claim, _, path = rest.partition("/")
        if not _CLAIM_NAME.fullmatch(claim):
            raise _invalid(uri, "must name a claim of this namespace, as in pvc://claim/path")
        return Claim(claim, path.strip("/"))
    raise _invalid(uri, "must begin with file:// or pvc://; other schemes are not served yet")


def _invalid(uri: str, rule: str) -> InvalidService:
    return InvalidService(Reason.INVALID_MODEL_URI, f"spec.model.uri {uri!r} {rule}")

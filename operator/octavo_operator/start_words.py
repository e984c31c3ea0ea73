"""What a container runtime says of a container that it cannot start, in words that stay. Pure."""

import re
from collections.abc import Mapping
from typing import Any

_ID = re.compile(r' "?[0-9a-f]{64}"?')
"""A container's, new at every try: a status that held it would never come to rest."""
_NO_IMAGE_VOLUMES = 'failed to mkdir "": mkdir : no such file or directory'
"""Of containerd before 2.1, which takes an image that is to be mounted for a path of no name."""


def settled(pod: Mapping[str, Any], text: str) -> str:
    """The runtime's text without what changes at every try, and explained where it is known."""
    mounts_images = any("image" in volume for volume in pod.get("spec", {}).get("volumes", []))
    if mounts_images and text.endswith(_NO_IMAGE_VOLUMES):
        return (
            "the node's runtime cannot mount an image as a volume, as oci:// asks for: "
            "containerd can from 2.1 on, CRI-O from 1.31 on"
        )
    return _ID.sub("", text)

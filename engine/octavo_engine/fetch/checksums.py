"""SHA256SUMS: the list of hashes that sources without their own may carry. Pure."""

import re

from octavo_engine.fetch.errors import DownloadFailed

NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")


def parse(text: str, source: str) -> dict[str, str]:
    """File name -> hash, from what `sha256sum *` writes. Raises DownloadFailed."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match:
            found[match[2]] = match[1].lower()
        elif line.strip():
            raise DownloadFailed(f"{source}, line {number} is not what sha256sum writes: {line!r}")
    return found

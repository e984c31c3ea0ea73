"""Writes release.tar.xz: what an upgrade comes from, out of git.

usage: python tests/operator/previous/make.py REVISION     the release before this one
"""

import lzma
import subprocess
import sys
from pathlib import Path

ARCHIVE = Path(__file__).parent / "release.tar.xz"
PARTS = ("operator/octavo_operator", "crds", "charts/octavo")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    command = ["git", "archive", "--format=tar", sys.argv[1], "--", *PARTS]
    root = Path(__file__).parents[3]
    packed = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
    ARCHIVE.write_bytes(lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME))
    sys.stdout.write(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()

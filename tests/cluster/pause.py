"""The image that holds a pod's namespaces open: a static program that waits, built by `cc`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.cluster.node import PAUSE_IMAGE
from tests.cluster.run import run
from tests.cluster.scratch_image import Tree, write_archive
from tests.cluster.state import cache_home, locked

# Children of a shared pid namespace are reaped by the kernel once SIGCHLD is ignored.
_SOURCE = """\
#include <signal.h>
#include <unistd.h>
static void leave(int signal_number) { (void)signal_number; _exit(0); }
int main(void) {
  signal(SIGINT, leave);
  signal(SIGTERM, leave);
  signal(SIGCHLD, SIG_IGN);
  for (;;) pause();
}
"""


def pause_archive() -> Path:
    """The archive of `PAUSE_IMAGE`, built once into the user's cache."""
    target = cache_home() / "images" / "pause-1.tar"
    with locked(target.with_suffix(".lock")):
        if not target.exists():
            _build(target)
    return target


def _build(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        program, archive = Path(scratch) / "pause", Path(scratch) / "image.tar"
        run(["cc", "-Os", "-s", "-static", "-x", "c", "-", "-o", program], stdin=_SOURCE)
        tree = Tree()
        tree.file("/pause", program.read_bytes(), 0o755)
        write_archive(archive, PAUSE_IMAGE, tree, {"Entrypoint": ["/pause"], "User": "65535:65535"})
        archive.replace(target)

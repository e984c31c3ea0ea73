"""Run by make before anything else: can a cluster work here, and if not, what is missing?

usage: python3 tests/cluster/preflight.py [--control-plane]

With --control-plane a cluster without nodes will do, which needs no root.

Changes nothing and needs nothing but the standard library. Prints nothing and returns 0 when all is
there or can be got; else one screen of what to do.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # Run as a file, by any Python, before there is a virtual environment.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.cluster import prepare, programs

_HELP = """\
Octavo's demo and tests need a Kubernetes cluster, and this machine cannot make one yet:

{problems}

Any one of these will do:
  * become root on this machine (Debian or Ubuntu), with Go {go} or Kubernetes' programs on PATH:
    everything else is then installed and built, in namespaces of its own
  * install Docker and kind (https://kind.sigs.k8s.io): no root is needed then
  * export KUBECONFIG=... of a cluster whose nodes can pull the images

Nothing has been changed. The engine alone needs no cluster: see "The engine alone" in README.md.
"""


def blockers(*, with_nodes: bool) -> list[str]:
    """What keeps every provider from working here; empty when one of them will."""
    if os.environ.get("KUBECONFIG") or prepare.kind_works():
        return []
    reason = prepare.why_no_nodes() if with_nodes else None
    found = [reason] if reason is not None else []
    return found + prepare.problems(with_nodes=with_nodes)


def main() -> None:
    found = blockers(with_nodes="--control-plane" not in sys.argv[1:])
    if found:
        go = ".".join(str(part) for part in programs.GO_MINOR)
        listed = "\n".join(f"  - {problem}" for problem in found)
        sys.stderr.write(_HELP.format(problems=listed, go=go))
        sys.exit(1)


if __name__ == "__main__":
    main()

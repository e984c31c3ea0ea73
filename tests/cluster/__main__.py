"""`python -m tests.cluster`: a real Kubernetes on this machine, from the shell."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer
from tests.cluster import operator_image, programs
from tests.cluster.choose import DEFAULT_NAME, own
from tests.cluster.errors import ClusterError
from tests.cluster.prepare import prepare as prepare_machine
from tests.cluster.prepare import why_no_nodes
from tests.cluster.provider import ClusterInfo
from tests.cluster.state import known_clusters

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

Name = Annotated[str, typer.Option(help="Clusters of different names stand side by side.")]
Nodes = Annotated[
    int | None,
    typer.Option(min=0, max=2, help="0 is a control plane alone. [default: 1, or 0 without root]"),
]
Gpus = Annotated[int, typer.Option(min=0, help="nvidia.com/gpu that each node advertises.")]


class Teller:
    """Prints progress with the seconds since the start, on standard error."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self._started:6.1f} s  {text}\n")
        sys.stderr.flush()


@app.command()
def up(name: Name = DEFAULT_NAME, nodes: Nodes = None, gpus: Gpus = 2) -> None:
    """Bring the cluster up, or find it up, and print its kubeconfig."""
    say = Teller()
    if nodes is None:
        reason = why_no_nodes()
        nodes = 1 if reason is None else 0
        if reason is not None:
            say(f"a control plane alone: {reason}")
    _print_info(own(name, num_nodes=nodes, gpus_per_node=gpus, say=say).up())


@app.command()
def down(name: Name = DEFAULT_NAME) -> None:
    """Remove the cluster and everything it made."""
    own(name, num_nodes=1, gpus_per_node=0, say=Teller()).down()


@app.command()
def status() -> None:
    """List the local clusters."""
    for record in known_clusters():
        nodes = ", ".join(record.nodes) or "control plane only"
        typer.echo(f"{record.name}: {record.provider}, {nodes}")


@app.command()
def prepare() -> None:
    """Install and build all that a cluster needs here, so that later starts take seconds."""
    prepare_machine(with_nodes=why_no_nodes() is None, say=Teller())


@app.command()
def images() -> None:
    """Build the operator's image, and print its archive and name."""
    typer.echo(f"{operator_image.operator_archive(Teller())}\t{operator_image.OPERATOR_IMAGE}")


@app.command("build-tools")
def build_tools() -> None:
    """Find or build every program of a cluster, and print where each is."""
    for name, path in sorted(programs.obtain(with_nodes=True, say=Teller()).items()):
        typer.echo(f"{name}\t{path}")


def _print_info(info: ClusterInfo) -> None:
    typer.echo(f"export KUBECONFIG={info.kubeconfig}")
    typer.echo(f"export PATH={info.kubectl.parent}:{info.helm.parent}:$PATH")


def main() -> None:
    try:
        app()
    except ClusterError as error:
        sys.stderr.write(f"\n{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()

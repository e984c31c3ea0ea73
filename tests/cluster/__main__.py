"""`python -m tests.cluster`: a real Kubernetes on this machine, from the shell."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer
from tests.cluster import programs
from tests.cluster.choose import DEFAULT_NAME, choose
from tests.cluster.errors import ClusterError
from tests.cluster.provider import ClusterInfo
from tests.cluster.state import known_clusters

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

Name = Annotated[str, typer.Option(help="Clusters of different names stand side by side.")]
Nodes = Annotated[int, typer.Option(min=0, max=2, help="0 is a control plane alone.")]
Gpus = Annotated[int, typer.Option(min=0, help="nvidia.com/gpu that each node advertises.")]


class Teller:
    """Prints progress with the seconds since the start, on standard error."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self._started:6.1f} s  {text}\n")
        sys.stderr.flush()


@app.command()
def up(name: Name = DEFAULT_NAME, nodes: Nodes = 1, gpus: Gpus = 2) -> None:
    """Bring the cluster up, or find it up, and print its kubeconfig."""
    info = choose(name, num_nodes=nodes, gpus_per_node=gpus, say=Teller()).up()
    _print_info(info)


@app.command()
def down(name: Name = DEFAULT_NAME) -> None:
    """Remove the cluster and everything it made."""
    choose(name, num_nodes=1, gpus_per_node=0, say=Teller()).down()


@app.command()
def status() -> None:
    """List the local clusters."""
    for record in known_clusters():
        nodes = ", ".join(record.nodes) or "control plane only"
        typer.echo(f"{record.name}: {record.provider}, {nodes}")


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

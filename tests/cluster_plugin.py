"""Fixtures for tests on a real cluster. They know a kubeconfig; `choose.py` knows where it is from.

    cluster_provider   the session's cluster as something that loads images
    cluster            the session's cluster, with nodes that run pods
    kubeconfig         the path of its kubeconfig; enough for tests that only need an API server
One cluster serves the whole session and goes with it, unless OCTAVO_KEEP_CLUSTER=1 is set.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.choose import choose
from tests.cluster.prepare import why_no_nodes
from tests.cluster.provider import ClusterInfo, Provider
from tests.cluster.state import state_home

SESSION_GPUS = 2
_MAX_SESSIONS = 8


@pytest.fixture(scope="session")
def cluster_session_name() -> Iterator[str]:
    """A cluster name that no other session has now; the lock goes with this process.

    Names are used again, so that `up` finds and removes what a killed session left.
    """
    state_home().mkdir(parents=True, exist_ok=True)
    for session_idx in range(_MAX_SESSIONS):
        name = f"test{session_idx}"
        with (state_home() / f"{name}.session.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield name
            return
    pytest.fail(f"{_MAX_SESSIONS} other test sessions have a cluster now")


@pytest.fixture(scope="session")
def cluster_provider(cluster_session_name: str) -> Iterator[Provider]:
    num_nodes = 1 if why_no_nodes() is None else 0
    provider = choose(
        cluster_session_name, num_nodes=num_nodes, gpus_per_node=SESSION_GPUS, say=_say
    )
    keep = os.environ.get("OCTAVO_KEEP_CLUSTER") == "1"
    if not keep:
        provider.down()
    yield provider
    if not keep:
        provider.down()


@pytest.fixture(scope="session")
def _any_cluster(cluster_provider: Provider) -> ClusterInfo:
    return cluster_provider.up()


@pytest.fixture(scope="session")
def cluster(_any_cluster: ClusterInfo) -> ClusterInfo:
    """A cluster that runs pods: skips where this user can have none."""
    if _any_cluster.num_nodes == 0:
        pytest.skip(f"this cluster has no nodes: {why_no_nodes()}")
    return _any_cluster


@pytest.fixture(scope="session")
def kubeconfig(_any_cluster: ClusterInfo) -> Path:
    return _any_cluster.kubeconfig


def _say(text: str) -> None:
    # pytest captures what a fixture prints; shown with -s or when a test fails
    sys.stderr.write(f"{text}\n")

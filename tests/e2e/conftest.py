"""The end-to-end tests share the session's cluster and one installation of the operator.

Real here: the API server, kubelet, images, helm, the operator in its pod with the chart's rights,
the engine on the CPU, the `openai` client. Simulated: the nodes' accelerators.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.cluster import audit
from tests.cluster.local import LocalProvider
from tests.cluster.node_setup import models_cache
from tests.cluster.provider import ClusterInfo, Provider
from tests.e2e import faults, install
from tests.e2e.stage import OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, Stage
from tests.tools.smollm2 import make_folder

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def installed(cluster: ClusterInfo, cluster_provider: Provider) -> Iterator[Stage]:
    """A cluster with the operator, and the small model where the examples look for it.

    Fails afterwards where the operator asked for what the chart's Role does not grant.
    """
    make_folder(models_cache() / MODEL)
    install.load_images(cluster_provider, _say)
    stage = Stage(cluster, "default")
    install.helm_install(stage)
    yield stage
    if cluster.audit_log is not None:
        refused = audit.refused(cluster.audit_log, OPERATOR_NAMESPACE, OPERATOR_ACCOUNT)
        # Asked again: an API server that was killed refuses everybody until it has read its Roles.
        assert not [call for call in refused if not stage.operator_may(call)]


@pytest.fixture
def stage(installed: Stage) -> Iterator[Stage]:
    """The installation with no service on it, before and after."""
    _clear(installed)
    faults.wait_for_operator(installed)
    yield installed
    _clear(installed)


@pytest.fixture
def local_provider(cluster_provider: Provider) -> LocalProvider:
    if not isinstance(cluster_provider, LocalProvider):
        pytest.skip("kills processes of the node: needs the local provider")
    return cluster_provider


def _clear(stage: Stage) -> None:
    stage.kubectl("delete", "osvc", "--all", timeout_s=120)
    stage.kubectl("wait", "--for=delete", "pod", "--all", "--timeout=120s", timeout_s=150)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")

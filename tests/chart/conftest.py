"""helm over our chart."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster import programs

CHART = Path(__file__).parents[2] / "charts" / "octavo"
Manifest = dict[str, Any]


@pytest.fixture(scope="session")
def helm() -> Path:
    found = programs.locate((programs.HELM,))
    if found is None:
        pytest.fail("no helm: run `python -m tests.cluster build-tools` once")
    return found["helm"]


@pytest.fixture(scope="session")
def try_render(helm: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`helm template` with the given values."""

    def run(values: Manifest | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [helm, "template", "octavo", CHART, "--namespace=octavo-system", "--values=-"],
            input=json.dumps(values or {}),
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.fixture(scope="session")
def render(
    try_render: Callable[..., subprocess.CompletedProcess[str]],
) -> Callable[..., list[Manifest]]:
    """The objects that the chart makes with the given values."""

    def objects(values: Manifest | None = None) -> list[Manifest]:
        result = try_render(values)
        assert result.returncode == 0, result.stderr
        return [document for document in yaml.safe_load_all(result.stdout) if document]

    return objects


@pytest.fixture(scope="session")
def api_server(_any_cluster: Any) -> Any:
    """The session's cluster (a ClusterInfo); these tests need no nodes in it."""
    return _any_cluster

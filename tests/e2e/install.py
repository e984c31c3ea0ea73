"""The operator on a cluster, as a user installs it: images without a registry, then helm."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.cluster import hostenv, operator_image
from tests.cluster.programs import Say
from tests.cluster.provider import Provider
from tests.cluster.state import REPOSITORY
from tests.e2e.stage import OPERATOR_NAMESPACE, Manifest, Stage

RELEASE = "octavo"
CHART = REPOSITORY / "charts" / "octavo"


def load_images(provider: Provider, say: Say) -> None:
    """Builds what has changed and imports it into the nodes."""
    for archive in (operator_image.operator_archive(say), hostenv.engine_archive()):
        provider.load_image(archive)


def helm_install(stage: Stage, values: Manifest | None = None) -> None:
    """Installs the chart, or upgrades it; returns when the operator's pod is ready."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "values.json"
        file.write_text(json.dumps(test_values(stage) | (values or {})))
        stage.helm(
            *("upgrade", "--install", RELEASE, CHART, "--namespace", OPERATOR_NAMESPACE),
            *("--create-namespace", "--values", file, "--wait", "--timeout", "3m"),
        )


def test_values(stage: Stage) -> Manifest:
    """The chart's values that differ here: local images, and accelerators that are simulated."""
    repository, tag = operator_image.OPERATOR_IMAGE.rsplit(":", 1)
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "engine": {
            "image": hostenv.ENGINE_IMAGE,
            "imagePullPolicy": "Never",
            "deviceWithAccelerator": "cpu",
            "podOverlay": hostenv.engine_overlay(node_prefix=stage.cluster.node_prefix),
        },
    }

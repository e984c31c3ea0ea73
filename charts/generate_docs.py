"""Writes what the chart holds of other sources; `--check` fails when something is stale.

The CRD is copied from crds/, and the table of values in the chart's README.md is made from the
comments of values.yaml: a comment stands right above its value.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "octavo"
CRD_SOURCE = Path(__file__).parents[1] / "crds" / "inferenceservices.yaml"
CRD_COPY = CHART / "files" / "inferenceservices.yaml"
PAGE = CHART / "README.md"

_INTRODUCTION = """\
# The octavo chart

<!-- Written by `make crds` from Chart.yaml and values.yaml; edit those. -->

{description}

    helm install octavo charts/octavo --namespace octavo-system --create-namespace --wait

It installs the InferenceService CRD, the operator, and a Role with just what the operator does: no
Secrets, no exec, no wildcards. With `watchNamespaces` it asks for nothing outside those namespaces
but the CRD (set `crds.install=false` where somebody else installs that). `helm uninstall` keeps the
CRD and so every service.

## What it may take away

- It deletes ConfigMaps and PodMonitors of its own, once no setting asks for them and no pod reads
  them. The Role cannot say "of its own"; the operator deletes only what its services own.
- It evicts a pod whose engine ended by a GPU fault for the third time: a restarted container keeps
  its pod's accelerator, also a broken one. The eviction API keeps to PodDisruptionBudgets, and an
  Event tells of it. `evictAfterGpuFaults=false` takes the right away.
- While a replica that a service lacks is on its way, the service's PodDisruptionBudget allows no
  eviction, so that no consolidation of nodes begins its start anew; a drain waits. It ends when the
  replica answers, fails, or is not there in time (`spec.rollout.progressDeadlineSeconds`).

## Upgrades

`helm upgrade` alone restarts no engine. The pod template that was applied is kept on each service's
Deployment or StatefulSet, and it stays until the service's spec or the values below `engine` ask
for other pods, also where another release would make other pods of the same wishes. A new default
of `engine.image` does ask for them: set `engine.image` to keep the one that runs. A service changes
to a new release's template, without any other change, by

    kubectl annotate deployment NAME serving.octavo.dev/pod-template-

Needs Kubernetes {kubernetes}.

## Values

| value | default | meaning |
| --- | --- | --- |
"""


def page() -> str:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    introduction = _INTRODUCTION.format(
        description=chart["description"],
        kubernetes=chart["kubeVersion"].removesuffix("-0").replace(">=", "≥ "),
    )
    return introduction + "\n".join(_rows()) + "\n"


def _rows() -> Iterator[str]:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    root = yaml.compose(text)
    comments = {
        line_idx + 1: line.strip().removeprefix("#").strip()
        for line_idx, line in enumerate(text.splitlines())
        if line.strip().startswith("#")
    }
    yield from _walk("", root, comments)


def _walk(path: str, node: Any, comments: dict[int, str]) -> Iterator[str]:
    for key, value in node.value:
        name = f"{path}.{key.value}".removeprefix(".")
        # Lines count from 0 here and from 1 in `comments`: the comment is the line above.
        meaning = comments.get(key.start_mark.line)
        if meaning is not None:
            default = yaml.safe_load(yaml.serialize(value))
            yield f"| `{name}` | `{_shown(default)}` | {meaning} |"
        elif isinstance(value, yaml.MappingNode) and value.value:
            yield from _walk(name, value, comments)
        else:
            raise ValueError(f"values.yaml: {name} has no comment above it")


def _shown(default: Any) -> str:
    return yaml.safe_dump(default, default_flow_style=True, width=10_000).split("\n...")[0].strip()


def outputs() -> dict[Path, str]:
    return {CRD_COPY: CRD_SOURCE.read_text(encoding="utf-8"), PAGE: page()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when stale")
    is_check = parser.parse_args().check
    stale = [
        path
        for path, text in outputs().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if is_check:
            sys.stderr.write(f"{path} is stale: make crds\n")
        else:
            path.write_text(outputs()[path], encoding="utf-8")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""Prints the reference page of all metrics: `python -m octavo_engine.server.metrics_page`."""

import sys

from octavo_engine.server.metric_spec import MetricSpec
from octavo_engine.server.metrics import ALL_METRICS

DEFAULT_PREFIX = "vllm:"
_HEAD = """# Metrics of the engine's server

Generated from `octavo_engine/server/metrics.py` by `make metrics`; do not edit.

All but the two `http_` ones carry the labels `model_name` and `engine`. `--metrics-prefix` sets
another prefix than `vllm:`; the operator's autoscaling and the dashboard read the default.

| metric | kind | further labels | meaning |
|---|---|---|---|
"""


def page() -> str:
    return _HEAD + "".join(_row(spec) for spec in ALL_METRICS)


def _row(spec: MetricSpec) -> str:
    suffix = "_total" if spec.kind == "counter" else ""
    labels = ", ".join(f"`{label}`" for label in spec.labels)
    name = spec.full_name(DEFAULT_PREFIX) + suffix
    return f"| `{name}` | {spec.kind} | {labels} | {spec.help} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())

"""Writes the Grafana dashboard of one service's replicas; `--check` fails when it is stale.

The panels are the table below, built by Grafana's own Foundation SDK, so that the JSON has the form
that Grafana expects. Queries use the metrics of engine/METRICS.md.
"""

import argparse
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as models_common
from grafana_foundation_sdk.models import dashboard as models

TARGET = Path(__file__).parent / "octavo" / "dashboards" / "service.json"
DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
WHERE = '{model_name=~"$model"}'
RATE = "[$__rate_interval]"
_SPAN, _HEIGHT = 8, 8


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    meaning: str
    queries: tuple[tuple[str, str], ...]
    """Expression and legend of each line."""


def _rate(metric: str, by: str = "") -> str:
    return f"sum{f' by ({by}) ' if by else ''}(rate({metric}{WHERE}{RATE}))"


def _percentiles(metric: str) -> tuple[tuple[str, str], ...]:
    inner = f"sum by (le) (rate({metric}_bucket{WHERE}{RATE}))"
    return tuple(
        (f"histogram_quantile({share}, {inner})", name)
        for share, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
    )


def _http(*, only: str = "") -> str:
    """Of the chosen model's replicas: these metrics do not name the model themselves."""
    matchers = ['handler=~"/v1/.*"', f'status=~"{only}"'] if only else ['handler=~"/v1/.*"']
    rate = f"rate(http_requests_total{{{', '.join(matchers)}}}{RATE})"
    return f"{rate} and on (instance) vllm:num_requests_running{WHERE}"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Service": (
        Panel(
            "Requests",
            "reqps",
            "Requests to the API by route.",
            ((f"sum by (handler) ({_http()})", "{{handler}}"),),
        ),
        Panel(
            "Errors",
            "percentunit",
            "Share of the requests answered with an error: 4xx is the client's, 5xx ours.",
            (
                (f"(sum({_http(only='4..')}) or vector(0)) / sum({_http()})", "4xx"),
                (f"(sum({_http(only='5..')}) or vector(0)) / sum({_http()})", "5xx"),
            ),
        ),
        Panel(
            "Replicas",
            "short",
            "Replicas that tell their numbers, and those that are leaving.",
            (
                (f"count(vllm:num_requests_running{WHERE})", "up"),
                (f"sum(octavo:draining{WHERE})", "leaving"),
            ),
        ),
    ),
    "Latency": (
        Panel(
            "Time to first token",
            "s",
            "From a request's arrival to its first token.",
            _percentiles("vllm:time_to_first_token_seconds"),
        ),
        Panel(
            "Inter-token latency",
            "s",
            "Between two tokens of a sequence.",
            _percentiles("vllm:inter_token_latency_seconds"),
        ),
        Panel(
            "End to end",
            "s",
            "From a request's arrival to its last token.",
            _percentiles("vllm:e2e_request_latency_seconds"),
        ),
    ),
    "Load": (
        Panel(
            "Tokens",
            "short",
            "Tokens a second, in and out.",
            (
                (_rate("vllm:prompt_tokens_total"), "prompt"),
                (_rate("vllm:generation_tokens_total"), "generated"),
            ),
        ),
        Panel(
            "Pending and running",
            "short",
            "Requests that wait for room, and those that take part in steps.",
            (
                (f"sum(vllm:num_requests_waiting{WHERE})", "pending"),
                (f"sum(vllm:num_requests_running{WHERE})", "running"),
            ),
        ),
        Panel(
            "Queue time",
            "s",
            "From a request's arrival to its first step.",
            _percentiles("vllm:request_queue_time_seconds"),
        ),
    ),
    "KV cache": (
        Panel(
            "KV cache in use",
            "percentunit",
            "Share of the pages that requests hold; at 1 requests wait or are preempted.",
            ((f"max(vllm:kv_cache_usage_perc{WHERE})", "fullest replica"),),
        ),
        Panel(
            "Prefix hits",
            "percentunit",
            "Share of the prompt tokens that the prefix cache held.",
            (
                (
                    f"{_rate('vllm:prefix_cache_hits_total')} / "
                    f"({_rate('vllm:prefix_cache_queries_total')} > 0)",
                    "hit rate",
                ),
            ),
        ),
        Panel(
            "Preemptions",
            "short",
            "Times a second that a running request gave its pages up.",
            ((_rate("vllm:num_preemptions_total"), "preemptions"),),
        ),
    ),
    "Engine": (
        Panel(
            "Step time by part",
            "s",
            "Mean seconds of a step: the host's parts, and the device's time beside them.",
            (
                (
                    f"{_rate('octavo:step_seconds_total', by='part')} / ignoring (part) "
                    f"group_left {_rate('octavo:steps_total')}",
                    "{{part}}",
                ),
            ),
        ),
        Panel(
            "Lost to the host and to padding",
            "percentunit",
            "Share of the time in which the device waited for the host, and share of the rows that "
            "were computed for nothing.",
            (
                (_rate("octavo:host_gap_seconds_total"), "host gap"),
                (
                    f"{_rate('octavo:step_padded_rows_total')} / "
                    f"({_rate('octavo:step_padded_rows_total')} + "
                    f"{_rate('octavo:step_rows_total')})",
                    "padding",
                ),
            ),
        ),
        Panel(
            "Clients that left, requests refused",
            "reqps",
            "Requests ended by a disconnect, and those refused for lack of room.",
            (
                (_rate("octavo:client_disconnects_total"), "left"),
                (
                    f"({_rate('vllm:admission_rejections_total', by='reason')}) or "
                    "label_replace(vector(0), 'reason', 'none', '', '')",
                    "refused: {{reason}}",
                ),
            ),
        ),
    ),
}


def build() -> str:
    built = (
        dashboard.Dashboard("Octavo: service")
        .uid("octavo-service")
        .description("Traffic, latency, load and KV cache of the replicas of a served model.")
        .tags(["octavo"])
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("model")
            .label("Model")
            .query("label_values(vllm:num_requests_running, model_name)")
            .datasource(DATASOURCE)
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )
    ids = count(1)
    for title, panels in ROWS.items():
        built = built.with_row(dashboard.Row(title).id(next(ids)))
        for panel in panels:
            built = built.with_panel(_panel(panel).id(next(ids)))
    return JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"


def _panel(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.meaning)
        .unit(panel.unit)
        .min(0)
        .legend(common.VizLegendOptions().show_legend(True))
        .tooltip(common.VizTooltipOptions().mode(models_common.TooltipDisplayMode.MULTI))
        .span(_SPAN)
        .height(_HEIGHT)
        .datasource(DATASOURCE)
    )
    for ref_id, (expression, legend) in zip("ABCDEF", panel.queries, strict=False):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(ref_id)
        built = built.with_target(query.datasource(DATASOURCE))
    return built


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when stale")
    content = build()
    if parser.parse_args().check:
        if not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != content:
            sys.exit(f"{TARGET} is stale: run `make metrics`")
        return
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()

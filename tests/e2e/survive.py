"""`make survive`: what running streams survive, on a cluster of two nodes, as a table.

usage: python -m tests.e2e.survive [BLOW ...]        all blows, or those of these titles

Under 30 streams of a small model on CPU pods: pods deleted, scaled, rolled out (well, badly,
reverted) and evicted, a node drained, the operator killed. Ends with 1 when a stream was lost.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from tests.cluster.errors import ClusterError
from tests.cluster.local import LocalProvider
from tests.cluster.node_setup import models_cache
from tests.e2e import chat, install
from tests.e2e.blows import REPLICAS, Blow, blows
from tests.e2e.stage import NotSo, Stage
from tests.e2e.streams import Streams, streaming
from tests.tools.smollm2 import make_folder

CLUSTER = "survive"
MODEL = "smollm2-135m-instruct"
NUM_STREAMS = 30
MAX_TOKENS = 48
_UNDER_WAY_WITHIN_S = 120.0

SERVED = {
    "apiVersion": "serving.octavo.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "smollm2"},
    "spec": {
        "model": {"uri": f"file:///var/lib/octavo/models/{MODEL}"},
        "accelerator": {"resourceName": "none"},
        "engine": {"maxNumSeqs": NUM_STREAMS, "maxModelLen": 512, "cpuKvCacheGiB": 0.25},
        "replicas": REPLICAS,
    },
}


@dataclass(frozen=True)
class Outcome:
    title: str
    seconds: float
    num_in_flight: int
    """Streams that ran when the blow fell."""
    num_whole: int
    """Of all that ran while it was carried out."""
    cut: tuple[str, ...]
    refused: tuple[str, ...]
    unsettled: str = ""
    """What had not become true in time, and what there was instead."""

    def __str__(self) -> str:
        ended = f"{self.num_whole} whole, {len(self.cut)} cut, {len(self.refused)} refused"
        return f"{self.title}: {self.seconds:.0f} s, {self.num_in_flight} in flight, {ended}"


def suffer(
    stage: Stage, chosen: tuple[Blow, ...], *, number: int, max_tokens: int
) -> list[Outcome]:
    """Ends with the first blow that does not settle, or when interrupted."""
    stage.kubectl("apply", "--filename=-", stdin=json.dumps(SERVED))
    stage.wait_ready()
    with chat.endpoint(stage) as url:
        with streaming(url, "smollm2", number=number, max_tokens=max_tokens) as streams:
            dealt: list[_Dealt] = []
            while len(dealt) < len(chosen) and not (dealt and dealt[-1].unsettled):
                dealt.append(_deal(stage, chosen[len(dealt)], streams))
                sys.stderr.write(f"{_outcome(dealt[-1], streams)}\n")
        # All have ended by now, also those that ran at the end of the last blow.
        return [_outcome(each, streams) for each in dealt]


@dataclass(frozen=True)
class _Dealt:
    title: str
    begun_s: float
    ended_s: float
    num_in_flight: int
    unsettled: str


def _deal(stage: Stage, blow: Blow, streams: Streams) -> _Dealt:
    stage.wait(
        "streams under way",
        lambda: streams.num_running > streams.number // 2,
        timeout_s=_UNDER_WAY_WITHIN_S,
    )
    begun_s, num_in_flight = time.monotonic(), streams.num_running
    unsettled = ""
    try:
        blow.deal(stage)
    except (NotSo, ClusterError) as error:
        unsettled = f"{blow.title}: {error}"
    except KeyboardInterrupt:
        unsettled = f"{blow.title}: interrupted"
    return _Dealt(blow.title, begun_s, time.monotonic(), num_in_flight, unsettled)


def _outcome(dealt: _Dealt, streams: Streams) -> Outcome:
    ran = streams.between(dealt.begun_s, dealt.ended_s)
    return Outcome(
        dealt.title,
        dealt.ended_s - dealt.begun_s,
        dealt.num_in_flight,
        sum(each.fate == "whole" for each in ran),
        tuple(each.error for each in ran if each.fate == "cut"),
        tuple(each.error for each in ran if each.fate == "refused"),
        dealt.unsettled,
    )


def table(outcomes: list[Outcome]) -> Table:
    made = Table(title="Streams that survived")
    for column in ("blow", "seconds", "in flight", "ended whole", "cut", "refused", "settled"):
        made.add_column(column, justify="left" if column == "blow" else "right")
    for each in outcomes:
        numbers = (each.num_in_flight, each.num_whole, len(each.cut), len(each.refused))
        settled = "no" if each.unsettled else "yes"
        made.add_row(each.title, f"{each.seconds:.0f}", *map(str, numbers), settled)
    return made


def main() -> None:
    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    provider = LocalProvider(CLUSTER, num_nodes=2, gpus_per_node=0, say=say)
    try:
        make_folder(models_cache() / MODEL)
        stage = Stage(provider.up(), "default")
        install.load_images(provider, say)
        install.helm_install(stage)
        outcomes = suffer(stage, _chosen(provider), number=NUM_STREAMS, max_tokens=MAX_TOKENS)
    except (ClusterError, NotSo) as error:
        sys.exit(f"\n{error}")
    finally:
        provider.down()
    Console(width=100).print(table(outcomes))
    lost = [why for each in outcomes for why in (*each.cut, *each.refused)]
    for why in dict.fromkeys(lost):
        say(f"{lost.count(why)} x {why}")
    unsettled = [each.unsettled for each in outcomes if each.unsettled]
    sys.exit("\n".join(unsettled) or (1 if lost else 0))


def _chosen(provider: LocalProvider) -> tuple[Blow, ...]:
    all_blows = blows(provider)
    titles = sys.argv[1:] or [blow.title for blow in all_blows]
    unknown = set(titles) - {blow.title for blow in all_blows}
    if unknown:
        sys.exit(f"no such blow: {', '.join(sorted(unknown))}\n{__doc__}")
    return tuple(blow for blow in all_blows if blow.title in titles)


if __name__ == "__main__":
    main()

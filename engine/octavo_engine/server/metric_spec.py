"""What a metric is: its name, kind, words, labels and buckets. Registers and measures nothing."""

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from octavo_engine.messages import EngineInfo, EngineStats

Kind = Literal["gauge", "counter", "histogram"]
Owner = Literal["compatible", "own", "http"]
"""compatible: names that dashboards, KEDA triggers and gateways already use, under a prefix that
can be chosen. own: what those lack, under `octavo:`. http: as web servers name them, without prefix
and without the common labels."""

COMMON_LABELS = ("model_name", "engine")
OWN_PREFIX = "octavo:"

Values = float | Mapping[str, float]
"""One number, or one for each value of the metric's only label."""
Read = Callable[[EngineStats, EngineInfo], Values]


class MetricSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Without its prefix; a counter's without `_total`."""
    kind: Kind
    help: str
    owner: Owner = "own"
    labels: tuple[str, ...] = ()
    """Beside the common ones."""
    buckets: tuple[float, ...] = ()
    read: Read | None = None
    """Where it is one of the core's numbers; None: the server observes it."""

    def full_name(self, compatible_prefix: str) -> str:
        match self.owner:
            case "compatible":
                return compatible_prefix + self.name
            case "own":
                return OWN_PREFIX + self.name
        return self.name

    @property
    def all_labels(self) -> tuple[str, ...]:
        return self.labels if self.owner == "http" else (*COMMON_LABELS, *self.labels)


TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
# On Hopper 4 to 8 ms is normal; buckets that begin at 10 ms see nothing there.
ITL_BUCKETS_S = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.01, 0.025, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LOOP_LAG_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
REQUEST_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
COMPILE_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
HTTP_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
TOKEN_BUCKETS = tuple(
    float(digit * 10**power) for power in range(6) for digit in (1, 2, 5)
)  # 1 to 500,000
COUNT_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

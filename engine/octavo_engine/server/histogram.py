"""A histogram that is cheap to fill: tens of thousands of tokens a second pass through it.

The client library's own takes a lock for each observation and looks through its buckets one by one.
Filled by the event loop's thread alone; a scrape in another thread may miss the latest value.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.metrics_core import HistogramMetricFamily


class FastHistogram:
    def __init__(
        self, name: str, text: str, labels: dict[str, str], bounds: Sequence[float]
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def family(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self._name, self._text, labels=list(self._labels))
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family.add_metric(list(self._labels.values()), buckets, sum_value=self._sum)
        return family

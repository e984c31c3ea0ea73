"""From samples to figures: throughput, percentiles, errors. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo_engine.bench.sample import Sample

_PERCENTILES = (50, 90, 95, 99)


def summary(samples: Sequence[Sample], duration_s: float) -> dict[str, Any]:
    """Times in milliseconds. Failed requests count as failed and in nothing else."""
    good = [sample for sample in samples if sample.error is None]
    num_output = sum(sample.num_output_tokens for sample in good)
    num_prompt = sum(sample.num_prompt_tokens for sample in good)
    errors = Counter(sample.error for sample in samples if sample.error is not None)
    return {
        "requests": len(samples),
        "failed": len(samples) - len(good),
        "errors": dict(errors.most_common(10)),
        "duration_s": duration_s,
        "prompt_tokens": num_prompt,
        "output_tokens": num_output,
        "requests_per_s": len(good) / duration_s,
        "output_tokens_per_s": num_output / duration_s,
        "total_tokens_per_s": (num_output + num_prompt) / duration_s,
        "ttft_ms": _figures([s.first_token_s - s.start_s for s in good if s.first_token_s]),
        "itl_ms": _figures([gap_s for sample in good for gap_s in sample.gaps_s]),
        "tpot_ms": _figures([tpot_s for sample in good if (tpot_s := _tpot_s(sample)) is not None]),
        "e2e_ms": _figures([s.last_token_s - s.start_s for s in good if s.last_token_s]),
    }


def _tpot_s(sample: Sample) -> float | None:
    """Mean time of a token after the first."""
    if sample.first_token_s is None or sample.last_token_s is None or sample.num_output_tokens < 2:
        return None
    return (sample.last_token_s - sample.first_token_s) / (sample.num_output_tokens - 1)


def _figures(seconds: Sequence[float]) -> dict[str, float] | None:
    """None without a single measurement."""
    if not seconds:
        return None
    values = np.asarray(seconds) * 1000
    figures = {f"p{p}": float(np.percentile(values, p)) for p in _PERCENTILES}
    return {"mean": float(values.mean()), **figures, "max": float(values.max())}

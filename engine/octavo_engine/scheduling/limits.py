"""The scheduler's settings with every default resolved; pure."""

from dataclasses import dataclass

from octavo_engine.config import SchedulerSettings
from octavo_engine.errors import ConfigError
from octavo_engine.messages import EngineInfo

_CPU_BATCHED_TOKENS = 2048
GPU_BATCHED_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queued_requests: int
    priority_ageing_s: float
    target_itl_s: float | None = None


def resolve_limits(settings: SchedulerSettings, info: EngineInfo) -> SchedulerLimits:
    """Raises ConfigError for settings that cannot work together."""
    max_num_seqs = settings.max_num_seqs or info.max_num_seqs
    if max_num_seqs > info.max_num_seqs:
        raise ConfigError(
            f"max_num_seqs is {max_num_seqs}, the runner's table has {info.max_num_seqs} rows"
        )
    budget = settings.max_num_batched_tokens
    if budget is None:
        is_cpu = info.device.startswith("cpu")
        budget = max(_CPU_BATCHED_TOKENS if is_cpu else GPU_BATCHED_TOKENS, max_num_seqs)
    if budget < max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({budget}) is below max_num_seqs ({max_num_seqs}): "
            "every running sequence decodes in every step"
        )
    target_ms = settings.target_itl_ms
    return SchedulerLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_queued_requests=settings.max_queued_requests,
        priority_ageing_s=settings.priority_ageing_s,
        target_itl_s=None if target_ms is None else target_ms / 1000,
    )

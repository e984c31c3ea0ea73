"""The operator's own settings, read once from a file that the chart mounts.

Frozen, nested by owner.
"""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from octavo_operator import merge
from octavo_operator.errors import ConfigurationError


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


class EngineDefaults(_Section):
    """What all engine pods get, beside what their InferenceService says."""

    image: str = Field(min_length=1)
    """Used where spec.image is absent."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    device_with_accelerator: Literal["auto", "cuda", "cpu"] = "cuda"
    """What a pod with an accelerator is told to run on; cpu where accelerators are simulated."""
    pod_overlay: dict[str, Any] = {}
    """Strategic overlay (metadata, spec) over the pod template of every engine."""

    @field_validator("pod_overlay")
    @classmethod
    def _only_template_parts(cls, overlay: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(set(overlay) - {"metadata", "spec"})
        if unknown:
            raise ValueError(f"may hold metadata and spec only, not {', '.join(unknown)}")
        merge.overlay({}, overlay)  # an item without its key is found here, not at the first pod
        return overlay


class LeaseSettings(_Section):
    name: str = "octavo-operator"
    duration_seconds: int = Field(default=15, ge=3)
    """How long others wait after the last renewal before they take over."""
    renew_deadline_seconds: float = Field(default=10, gt=0)
    """How long the active operator goes on without a renewal before it rests."""
    retry_seconds: float = Field(default=2, gt=0)

    @model_validator(mode="after")
    def _holder_rests_before_others_take_over(self) -> "LeaseSettings":
        # Staleness is noticed with the attempt after the deadline.
        rests_after_s = self.renew_deadline_seconds + self.retry_seconds
        if rests_after_s >= self.duration_seconds:
            raise ValueError(
                f"renewDeadlineSeconds + retrySeconds ({rests_after_s}) must be below "
                f"durationSeconds ({self.duration_seconds})"
            )
        return self


class SampleSettings(_Section):
    """How the load of ready engine pods is read from their /metrics."""

    interval_seconds: float = Field(default=5, ge=0.2)
    """A sample that is three intervals old is stale."""
    timeout_seconds: float = Field(default=2, gt=0)
    """How long one pod may take to answer."""
    concurrency: int = Field(default=32, ge=1, le=1024)
    """Pods that are read at the same time."""


class PodMonitorSettings(_Section):
    """How Prometheus finds the engines, where its operator's kinds are served."""

    install: bool = True
    labels: dict[str, str] = {}
    """By which a Prometheus chooses PodMonitors."""
    allowed_namespaces: tuple[str, ...] = ()
    """Where it runs: the services' NetworkPolicies let it in."""


class OperatorConfig(_Section):
    engine: EngineDefaults
    watch_namespaces: tuple[str, ...] = ()
    """Empty: the whole cluster."""
    resync_seconds: float = Field(default=600, ge=1)
    """Everything is listed and compared anew this often, whatever events came."""
    surge_wait_seconds: float = Field(default=60, ge=0)
    """How long a surge may wait for an accelerator, before an old replica is taken first."""
    evict_after_gpu_faults: bool = True
    """Whether a pod that ends by GPU faults again and again is evicted: it keeps a broken GPU."""
    workers: int = Field(default=8, ge=1, le=64)
    """Services that are reconciled at the same time."""
    health_port: int = Field(default=8080, ge=0, le=65535)
    health_host: str = "0.0.0.0"
    lease: LeaseSettings = LeaseSettings()
    samples: SampleSettings = SampleSettings()
    pod_monitors: PodMonitorSettings = PodMonitorSettings()
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def load(path: Path) -> OperatorConfig:
    """Raises ConfigurationError that names the file and the setting."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is not YAML: {error}") from error
    try:
        config = OperatorConfig.model_validate(data)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(step) for step in problem['loc'])}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        ]
        raise ConfigurationError(f"{path}: {'; '.join(problems)}") from error
    return config

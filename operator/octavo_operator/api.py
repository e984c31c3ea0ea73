"""The InferenceService as Python types, and `parse` from an object of the API server.

The schema in crds/ has refused most mistakes and filled the defaults before an object comes here;
a test keeps the two in agreement. Knows nothing of children or status.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from octavo_operator import merge, model_source
from octavo_operator.errors import InvalidService
from octavo_operator.reasons import Reason

NO_ACCELERATOR = "none"


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        protected_namespaces=(),
    )


class SecretRef(_Part):
    name: str


class EmptyDirCache(_Part):
    size_limit: str | int | None = None


class NewClaim(_Part):
    size: str | int
    storage_class_name: str | None = None
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = "ReadWriteOnce"
    per_replica: bool = False


class CacheSpec(_Part):
    """One of them."""

    empty_dir: EmptyDirCache | None = None
    claim_name: str | None = None
    new_claim: NewClaim | None = None
    host_path: str | None = None

    def volume(self, service_name: str) -> dict[str, Any]:
        """As in a pod, without the volume's name."""
        if self.host_path is not None:
            return {"hostPath": {"path": self.host_path, "type": "Directory"}}
        if self.claim_name is not None or self.new_claim is not None:
            return {"persistentVolumeClaim": {"claimName": self.claim_name or service_name}}
        limit = None if self.empty_dir is None else self.empty_dir.size_limit
        return {"emptyDir": {} if limit is None else {"sizeLimit": limit}}


class ModelSpec(_Part):
    uri: str
    served_name: str | None = None
    secret_ref: SecretRef | None = None
    cache: CacheSpec | None = None
    refresh: str | None = None


class EnvVar(_Part):
    name: str
    value: str


class EngineSpec(_Part):
    """None: the engine chooses by the device."""

    tensor_parallel_size: int = 1
    quantization: Literal[
        "auto", "none", "gptq", "awq", "compressed-tensors", "bitsandbytes", "mxfp4", "fp8", "int8"
    ] = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    kv_cache_dtype: Literal["auto", "fp8"] | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    cpu_kv_cache_gib: float | None = Field(default=None, alias="cpuKvCacheGiB")
    block_size: int | None = None
    prefix_caching: bool = True
    swap_space_gib: float | None = Field(default=None, alias="swapSpaceGiB")
    target_itl_ms: float | None = None
    tool_parser: (
        Literal["auto", "none", "hermes", "qwen", "llama3_json", "mistral", "json"] | None
    ) = None
    chat_template: str | None = None
    reasoning_parser: Literal["auto", "none", "think", "bracket-think"] | None = None
    extra_args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()


class AcceleratorSpec(_Part):
    resource_name: str = "nvidia.com/gpu"
    product: str | None = None
    product_label: str = "nvidia.com/gpu.product"
    memory_gib: float | None = Field(default=None, alias="memoryGiB")


class ResourcesSpec(_Part):
    """Quantities as the user wrote them."""

    requests: dict[str, str | int] = {}
    limits: dict[str, str | int] = {}


class Toleration(_Part):
    key: str | None = None
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class AffinitySpec(_Part):
    """As in a pod; the API server knows what is in the parts."""

    node_affinity: dict[str, Any] = {}
    pod_affinity: dict[str, Any] = {}
    pod_anti_affinity: dict[str, Any] = {}


class PodMetadata(_Part):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PodTemplateSpec(_Part):
    """Laid over the pod that the operator makes."""

    metadata: PodMetadata = PodMetadata()
    spec: dict[str, Any] = {}

    @field_validator("spec")
    @classmethod
    def _items_have_keys(cls, spec: dict[str, Any]) -> dict[str, Any]:
        merge.overlay({}, spec)
        return spec


class ScalingTargets(_Part):
    pending_requests_per_replica: int = 4
    kv_cache_use_percent: int = 80


class AutoscalingSpec(_Part):
    min_replicas: int = 1
    max_replicas: int
    targets: ScalingTargets = ScalingTargets()
    scale_down_stabilization_seconds: int = 300


class RolloutSpec(_Part):
    strategy: Literal["auto", "surge", "recreate"] = "auto"
    max_surge: int | None = None
    drain_seconds: int = 300
    progress_deadline_seconds: int = 2700


class SecretKeyRef(_Part):
    name: str
    key: str = "api-keys"


class AuthSpec(_Part):
    api_keys_secret_ref: SecretKeyRef


class NetworkSpec(_Part):
    isolated: bool = True
    allowed_namespaces: tuple[str, ...] = ()


class Spec(_Part):
    model: ModelSpec
    engine: EngineSpec = EngineSpec()
    image: str | None = None
    accelerator: AcceleratorSpec = AcceleratorSpec()
    resources: ResourcesSpec = ResourcesSpec()
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    affinity: AffinitySpec = AffinitySpec()
    priority_class_name: str | None = None
    pod_template: PodTemplateSpec = PodTemplateSpec()
    replicas: int = 1
    autoscaling: AutoscalingSpec | None = None
    rollout: RolloutSpec = RolloutSpec()
    auth: AuthSpec | None = None
    network: NetworkSpec = NetworkSpec()


@dataclass(frozen=True)
class InferenceService:
    namespace: str
    name: str
    uid: str
    generation: int
    spec: Spec
    model_source: model_source.ModelSource

    @property
    def served_name(self) -> str:
        return self.spec.model.served_name or self.name

    @property
    def memory_gib(self) -> float | None:
        """Of one accelerator, or a replica's limit on the CPU; None: not told."""
        if self.accelerator_count:
            return self.spec.accelerator.memory_gib
        limit = self.spec.resources.limits.get("memory")
        return None if limit is None else float(merge.quantity(limit) / 2**30)

    @property
    def new_claim(self) -> NewClaim | None:
        cache = self.spec.model.cache
        return None if cache is None else cache.new_claim

    @property
    def replica_claim(self) -> NewClaim | None:
        """What each replica gets for itself; None where they share, or have no claim."""
        claim = self.new_claim
        return claim if claim is not None and claim.per_replica else None

    @property
    def shared_claim(self) -> NewClaim | None:
        """The one that all replicas share, of those that we make."""
        claim = self.new_claim
        return None if claim is None or claim.per_replica else claim

    @property
    def accelerator_count(self) -> int:
        """How many accelerators a replica's pod asks for; 0 on the CPU."""
        if self.spec.accelerator.resource_name == NO_ACCELERATOR:
            return 0
        return self.spec.engine.tensor_parallel_size


def parse(body: Mapping[str, Any]) -> InferenceService:
    """Raises InvalidService with a sentence that names field and rule."""
    metadata = body["metadata"]
    try:
        spec = Spec.model_validate(body.get("spec", {}))
    except ValidationError as error:
        raise InvalidService(Reason.INVALID_SPEC, _sentence(error)) from error
    return InferenceService(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        spec=spec,
        model_source=_model_source(spec.model, metadata["name"]),
    )


def _model_source(model: ModelSpec, service_name: str) -> model_source.ModelSource:
    cache = None if model.cache is None else model.cache.volume(service_name)
    return model_source.parse(model.uri, cache, model.refresh or "")


def _sentence(error: ValidationError) -> str:
    problems = [
        f"spec.{'.'.join(str(step) for step in problem['loc'])}: {problem['msg']}"
        for problem in error.errors(include_url=False)
    ]
    return "; ".join(problems)

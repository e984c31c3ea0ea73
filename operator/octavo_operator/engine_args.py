"""From an InferenceService to the arguments of `octavo serve`: one field, one option.

Knows the option names of the engine's command line and nothing else of the engine.
"""

from collections.abc import Iterable

from octavo_operator.api import InferenceService
from octavo_operator.model_source import Fetched

ENGINE_PORT = 8000
API_KEYS_FOLDER = "/etc/octavo/api-keys"
API_KEYS_FILE = "keys"
SETTINGS_FOLDER = "/etc/octavo/settings"
CHAT_TEMPLATE_FILE = "chat-template.jinja"
TERMINATION_LOG = "/dev/termination-log"

_OPTIONS = (
    ("tensor_parallel_size", "--tensor-parallel-size"),
    ("quantization", "--quantization"),
    ("dtype", "--dtype"),
    ("kv_cache_dtype", "--kv-cache-dtype"),
    ("max_model_len", "--max-model-len"),
    ("max_num_seqs", "--max-num-seqs"),
    ("max_num_batched_tokens", "--max-num-batched-tokens"),
    ("gpu_memory_utilization", "--gpu-memory-utilization"),
    ("cpu_kv_cache_gib", "--cpu-kv-cache-gib"),
    ("block_size", "--block-size"),
    ("swap_space_gib", "--swap-space-gib"),
    ("target_itl_ms", "--target-itl-ms"),
    ("tool_parser", "--tool-parser"),
    ("reasoning_parser", "--reasoning-parser"),
)
"""Field of EngineSpec -> option; a field that is None is left to the engine."""
_MEMORY_FIELDS = (
    "tensor_parallel_size",
    "quantization",
    "dtype",
    "kv_cache_dtype",
    "max_model_len",
    "gpu_memory_utilization",
    "cpu_kv_cache_gib",
    "block_size",
)
_PLANNED = tuple(pair for pair in _OPTIONS if pair[0] in _MEMORY_FIELDS)
"""What decides how much memory a replica takes."""


def serve_args(service: InferenceService, device_with_accelerator: str) -> list[str]:
    """The arguments after `octavo`, beginning with `serve PATH`."""
    engine = service.spec.engine
    args = [
        "serve",
        service.model_source.serve_path,
        "--host=0.0.0.0",
        f"--port={ENGINE_PORT}",
        f"--served-model-name={service.served_name}",
        f"--device={_device(service, device_with_accelerator)}",
        *_options(service, _OPTIONS),
    ]
    args.append("--prefix-caching" if engine.prefix_caching else "--no-prefix-caching")
    if engine.chat_template is not None:
        args.append(f"--chat-template={SETTINGS_FOLDER}/{CHAT_TEMPLATE_FILE}")
    if service.spec.auth is not None:
        args.append(f"--api-key-file={API_KEYS_FOLDER}/{API_KEYS_FILE}")
    args += [
        f"--drain-seconds={service.spec.rollout.drain_seconds}",
        # In two words: so the engine finds it even when it cannot make sense of the others.
        "--termination-log",
        TERMINATION_LOG,
        "--log-format=json",
    ]
    return args + list(engine.extra_args)


def fetch_args(
    service: InferenceService,
    source: Fetched,
    secret_folder: str | None,
    device_with_accelerator: str,
) -> list[str]:
    """The arguments after `octavo` of the init container, beginning with `fetch URI`.

    It is told the engine's settings, too, so that it can plan the memory that they take.
    """
    args = ["fetch", source.uri, f"--to={source.folder}"]
    if secret_folder is not None:
        args.append(f"--secret-dir={secret_folder}")
    args.append(f"--device={_device(service, device_with_accelerator)}")
    args += _options(service, _PLANNED)
    if service.memory_gib is not None:
        args.append(f"--memory-gib={service.memory_gib:g}")
    return [*args, "--termination-log", TERMINATION_LOG, "--log-format=json"]


def _device(service: InferenceService, device_with_accelerator: str) -> str:
    return device_with_accelerator if service.accelerator_count else "cpu"


def _options(service: InferenceService, options: Iterable[tuple[str, str]]) -> list[str]:
    values = ((option, getattr(service.spec.engine, field)) for field, option in options)
    return [f"{option}={value}" for option, value in values if value is not None]

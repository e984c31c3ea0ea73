"""The plan of a fetched model under an engine's settings, and the refusal of what cannot fit."""

import json
from pathlib import Path

from octavo_engine.config import EngineConfig
from octavo_engine.fetch.errors import DoesNotFit
from octavo_engine.fetch.manifest import Manifest
from octavo_engine.fetch.plan import FitPlan, Room, plan, read_shape, why_not
from octavo_engine.memory_facts import GIB, kv_itemsize

_ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}


def judge(
    folder: Path, manifest: Manifest, config: EngineConfig, memory_gib: float | None
) -> FitPlan | None:
    """memory_gib: of one accelerator, or the pod's limit on a CPU; None: not known.

    None for what cannot be planned: a .gguf file, or a config in other words. Raises DoesNotFit.
    """
    path = folder / "config.json"
    raw = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    shape = read_shape(raw)
    if shape is None:
        return None
    weights = [file for file in manifest.files if file.path.endswith(".safetensors")]
    stored = str(raw.get("dtype") or raw.get("torch_dtype") or "float32")
    asked = config.model.dtype
    computed = _ITEMSIZE.get(stored if asked == "auto" else asked, 2)
    room = _room(config, memory_gib, computed)
    weights_bytes = sum(file.size_bytes for file in weights)
    if config.model.quantization in ("fp8", "int8") and "quantization_config" not in raw:
        # Quantised while they are loaded; what stays as it is (embeddings, norms) is not counted.
        weights_bytes //= _ITEMSIZE.get(stored, 2)
    made = plan(shape, weights_bytes, room)
    sentence = why_not(made, config.model.max_model_len, config.cache.block_size, room)
    if sentence is not None:
        raise DoesNotFit(sentence)
    return made


def _room(config: EngineConfig, memory_gib: float | None, itemsize: int) -> Room:
    is_cpu = config.model.device == "cpu"
    return Room(
        memory_bytes=None if memory_gib is None else int(memory_gib * GIB),
        pages_bytes=int(config.cache.cpu_kv_cache_gib * GIB) if is_cpu else None,
        utilization=config.cache.gpu_memory_utilization,
        num_ranks=config.parallel.tensor_parallel_size,
        kv_itemsize=kv_itemsize(itemsize, config.cache.kv_cache_dtype),
        is_cpu=is_cpu,
    )

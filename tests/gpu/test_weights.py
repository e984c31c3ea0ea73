"""Weights read by several threads arrive on the GPU as they are in the files."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.engine.tiny_models import save_tiny
from tests.gpu.gpu_engine import make_runner

from octavo_engine.loading import source
from octavo_engine.loading.parallel_read import ParallelReader


def test_memory_given_back_early_is_not_overwritten_too_soon(
    tmp_path: Path, device: torch.device
) -> None:
    """Small chunks, little in flight and a slow reader of each tensor: buffers and memory are used
    again and again."""
    tensors = {f"{idx:03d}": torch.randn(1_000_003) for idx in range(40)}
    save_file(tensors, tmp_path / "model.safetensors")
    reader = ParallelReader(
        [tmp_path / "model.safetensors"],
        device,
        num_threads=6,
        chunk_bytes=2**16 + 4,
        in_flight_bytes=9 * 2**20,
    )
    sums = {}
    for name, tensor in reader.tensors():
        torch.cuda._sleep(3_000_000)
        sums[name] = (tensor.double() - tensors[name].to(device).double()).abs().sum()
        del tensor
    assert sums.keys() == tensors.keys()
    assert all(float(one) == 0 for one in sums.values())


def test_a_model_loads_through_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_tiny("llama", tmp_path)
    monkeypatch.setattr(source, "MIN_PARALLEL_BYTES", 0)
    runner = make_runner(tmp_path, dtype=torch.float32, captures=False)
    weight = runner._model.blocks[1].mlp.down.weight  # type: ignore[attr-defined]  # a Decoder
    assert torch.equal(weight.cpu(), model.model.layers[1].mlp.down_proj.weight.data)

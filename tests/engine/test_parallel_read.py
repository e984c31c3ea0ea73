"""Reading weights by several threads: the bytes are those of the library, whatever the pieces, and
a quantised matrix is whole before the next one begins."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.test_quantization_fixtures import FOLDERS

from octavo_engine.errors import CheckpointError
from octavo_engine.layers.linear import Build
from octavo_engine.loading import source
from octavo_engine.loading.model_files import open_model
from octavo_engine.loading.names import PublishedNames
from octavo_engine.loading.parallel_read import ParallelReader, stored_tensors
from octavo_engine.loading.source import SafetensorsSource
from octavo_engine.model_config import kv_groups
from octavo_engine.models.decoder import Decoder
from octavo_engine.quantization import checkpoint
from octavo_engine.quantization.assembly import Assembly
from octavo_engine.quantization.checkpoint import QuantizedCheckpoint

CPU = torch.device("cpu")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    generator = torch.Generator().manual_seed(3)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    parts: list[dict[str, torch.Tensor]] = [
        {"a": numbers(33, 7), "b": numbers(5).bfloat16(), "scalar": numbers(), "none": numbers(0)},
        {"c": numbers(64, 64).half(), "d": numbers(9).to(torch.float8_e4m3fn),
         "e": torch.arange(11, dtype=torch.int32), "f": torch.tensor([True, False])},
    ]  # fmt: skip
    for idx, part in enumerate(parts):
        save_file(part, tmp_path / f"{idx}.safetensors", metadata={"format": "pt"})
    return [tmp_path / f"{idx}.safetensors" for idx in range(len(parts))]


@pytest.mark.parametrize("in_flight_bytes", [1, 10_000], ids=["one at a time", "all at once"])
@pytest.mark.parametrize("chunk_bytes", [3, 1000, 10**6])
def test_tensors_are_those_of_the_library(
    chunk_bytes: int, in_flight_bytes: int, files: list[Path]
) -> None:
    reader = ParallelReader(
        files, CPU, num_threads=3, chunk_bytes=chunk_bytes, in_flight_bytes=in_flight_bytes
    )
    found = dict(reader.tensors())
    expected = {name: tensor for path in files for name, tensor in load_file(path).items()}
    assert list(found) == [one.name for path in files for one in stored_tensors(path)]
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(
            found[name].view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8)
        )


def test_a_file_that_ends_within_a_tensor_is_named(files: list[Path]) -> None:
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[:-100])
    reader = ParallelReader(files, CPU, num_threads=2, chunk_bytes=64)
    with pytest.raises(CheckpointError, match=r"1\.safetensors ends at byte \d+, within a tensor"):
        list(reader.tensors())


@pytest.fixture
def by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MIN_PARALLEL_BYTES", 0)


@pytest.mark.usefixtures("by_several_threads")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_quantised_checkpoints_come_out_as_the_library_reads_them(folder: Path) -> None:
    found, expected = SafetensorsSource(folder, CPU).tensors(), SafetensorsSource(folder).tensors()
    for (name, tensor), (expected_name, of_library) in zip(found, expected, strict=True):
        assert name == expected_name
        assert tensor.dtype == of_library.dtype
        assert tensor.shape == of_library.shape
        assert torch.equal(bytes_of(tensor), bytes_of(of_library))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@pytest.mark.usefixtures("by_several_threads")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_more_than_one_quantised_matrix_waits_for_its_parts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are all that is in memory beside what the reader has under way."""
    made: list[Assembly] = []

    class Watched(Assembly):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(checkpoint, "Assembly", Watched)
    files = open_model(str(folder))
    assert files.scheme is not None
    assert isinstance(files.source, PublishedNames)
    config = files.model_config()
    quantized = QuantizedCheckpoint(files.scheme, files.source.infos(), CPU)
    groups = kv_groups([layer.window for layer in config.layers])
    decoder = Decoder(config, groups, Build(CPU, torch.float32, quantization=quantized))
    slots = {slot.name: slot for slot in quantized.slots(decoder.slots())}
    for name, tensor in files.source.onto(CPU).tensors():
        if name in slots:
            slots[name].write(tensor)
        assert sum(bool(assembly._held) for assembly in made) <= 1
    assert made
    assert not any(assembly._held for assembly in made)

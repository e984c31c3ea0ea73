"""Reading weights by several threads: the bytes are those of the library, whatever the pieces."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo_engine.errors import CheckpointError
from octavo_engine.loading.parallel_read import ParallelReader, stored_tensors

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

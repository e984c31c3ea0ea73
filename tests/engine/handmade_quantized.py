"""Quantised checkpoints written by hand in the formats of the tools, with the weights they mean.

`quantize` writes the files of a model of transformers anew and gives the model what they say.

Independent of the engine: packs by shifting and adding, dequantises before it packs.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
"""Nibble i of a word holds column AWQ_ORDER[i]."""
FP8_MAX = 448.0


@dataclass(frozen=True)
class Written:
    """One matrix: what the file holds by suffix, and what that means."""

    stored: Tensors
    means: torch.Tensor


Writer = Callable[[torch.Tensor], Written]
"""Of a matrix [N, K]."""


def quantize(
    folder: Path, model: Any, config: dict[str, Any], writer_of: Callable[[str], Writer | None]
) -> None:
    """Rewrites the saved checkpoint of `model` in `folder` and gives the model the same weights.

    writer_of: by a module's name; None: it stays as it is.
    """
    tensors: Tensors = {}
    means: Tensors = {}
    for name, weight in stored_weights(folder):
        module = name.removesuffix(".weight")
        writer = writer_of(module) if weight.dim() == 2 else None
        if writer is None:
            tensors[name] = means[name] = weight
            continue
        written = writer(weight)
        tensors |= {f"{module}.{suffix}": part for suffix, part in written.stored.items()}
        means[name] = written.means
    # transformers stacks the experts of a checkpoint by itself.
    save_file(means, folder / "model.safetensors", metadata={"format": "pt"})
    model.load_state_dict(type(model).from_pretrained(folder, dtype=torch.float32).state_dict())
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"quantization_config": config}))


def stored_weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors.torch import load_file

    yield from load_file(folder / "model.safetensors").items()


def part_in_shards(folder: Path, num_files: int) -> None:
    """Every matrix lies in several files."""
    tensors = dict(stored_weights(folder))
    (folder / "model.safetensors").unlink()
    place = {
        name: f"model-{idx % num_files + 1:05}-of-{num_files:05}.safetensors"
        for idx, name in enumerate(sorted(tensors))
    }
    for file in set(place.values()):
        part = {name: tensors[name] for name in tensors if place[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 0}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def pack(values: torch.Tensor, bits: int, dim: int, order: list[int] | None = None) -> torch.Tensor:
    """Value `order[i]` of each run along `dim` goes to bits i*bits; short runs end with zeros."""
    per_word = 32 // bits
    rows = values.long() if dim == 1 else values.long().t()
    rows = torch.nn.functional.pad(rows, (0, -rows.shape[1] % per_word))
    runs = rows.reshape(len(rows), -1, per_word)[:, :, order or list(range(per_word))]
    words = (runs << (torch.arange(per_word) * bits)).sum(-1)
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return words if dim == 1 else words.t()


@dataclass(frozen=True)
class Rounded:
    values: torch.Tensor
    """[N, K] from 0 to 2^bits - 1."""
    scales: torch.Tensor
    """[N, G], in the file's dtype."""
    zeros: torch.Tensor
    """[N, G]."""
    groups: torch.Tensor
    """[K]: the group of each input."""

    @property
    def means(self) -> torch.Tensor:
        zeros, scales = self.zeros[:, self.groups], self.scales.float()[:, self.groups]
        return (self.values.float() - zeros.float()) * scales


def rounded(
    weight: torch.Tensor, bits: int, group_size: int, *, is_symmetric: bool, is_spread: bool
) -> Rounded:
    """group_size: -1: all inputs. is_spread: the groups' inputs lie in no order."""
    num_rows, width = weight.shape
    size = width if group_size == -1 else group_size
    order = torch.randperm(width, generator=torch.Generator().manual_seed(width))
    groups = (order if is_spread else torch.arange(width)) // size
    num_groups, top = -(-width // size), 2**bits - 1
    scales, zeros = torch.zeros(num_rows, num_groups), torch.zeros(num_rows, num_groups)
    for group in range(num_groups):
        part = weight[:, groups == group]
        if is_symmetric:
            scales[:, group] = part.abs().amax(1) * 2 / top
            zeros[:, group] = 2 ** (bits - 1)
            continue
        low, high = part.amin(1).clamp_max(0), part.amax(1).clamp_min(0)
        scales[:, group] = (high - low) / top
        zeros[:, group] = (-low / scales[:, group]).round()
    scales = scales.half()
    values = (weight / scales.float()[:, groups] + zeros[:, groups]).round().clamp(0, top)
    return Rounded(values, scales, zeros, groups)


def gptq(
    bits: int = 4,
    group_size: int = 32,
    *,
    is_symmetric: bool = False,
    is_spread: bool = False,
    zero_offset: int = 1,
    has_g_idx: bool = True,
) -> Writer:
    def write(weight: torch.Tensor) -> Written:
        found = rounded(weight, bits, group_size, is_symmetric=is_symmetric, is_spread=is_spread)
        # Zero points of 0 borrow from their neighbour in version 1, which has a test of its own.
        zeros = found.zeros.clamp_min(zero_offset)
        found = Rounded(found.values, found.scales, zeros, found.groups)
        stored = {
            "qweight": pack(found.values.t(), bits, 0),
            "qzeros": pack(zeros.t() - zero_offset, bits, 1),
            "scales": found.scales.t(),
        }
        if has_g_idx:
            stored["g_idx"] = found.groups.to(torch.int32)
        return Written(stored, found.means)

    return write


def awq(group_size: int) -> Writer:
    def write(weight: torch.Tensor) -> Written:
        found = rounded(weight, 4, group_size, is_symmetric=False, is_spread=False)
        stored = {
            "qweight": pack(found.values.t(), 4, 1, AWQ_ORDER),
            "qzeros": pack(found.zeros.t(), 4, 1, AWQ_ORDER),
            "scales": found.scales.t(),
        }
        return Written(stored, found.means)

    return write


def packed(bits: int, group_size: int, *, is_symmetric: bool, is_spread: bool = False) -> Writer:
    """compressed-tensors' pack-quantized."""

    def write(weight: torch.Tensor) -> Written:
        found = rounded(weight, bits, group_size, is_symmetric=is_symmetric, is_spread=is_spread)
        stored = {
            "weight_packed": pack(found.values, bits, 1),
            "weight_scale": found.scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not is_symmetric:
            stored["weight_zero_point"] = pack(found.zeros, bits, 0)
        if is_spread:
            stored["weight_g_idx"] = found.groups.to(torch.int32)
        return Written(stored, found.means)

    return write


def fp8(block: tuple[int, int], *, suffix: str = "weight_scale") -> Writer:
    """One scale for each block of rows and inputs, the last ones short; -1: all of them."""

    def write(weight: torch.Tensor) -> Written:
        sizes = [
            whole if part == -1 else part for part, whole in zip(block, weight.shape, strict=True)
        ]
        at = [torch.arange(whole) // size for whole, size in zip(weight.shape, sizes, strict=True)]
        scales = torch.zeros(int(at[0][-1]) + 1, int(at[1][-1]) + 1)
        for row in range(scales.shape[0]):
            for column in range(scales.shape[1]):
                part = weight[at[0] == row][:, at[1] == column]
                scales[row, column] = part.abs().max() / FP8_MAX
        scales = scales.bfloat16()
        spread = scales.float()[at[0]][:, at[1]]
        values = (weight / spread).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        stored = {"weight": values, suffix: scales.flatten() if block == (-1, -1) else scales}
        return Written(stored, values.float() * spread)

    return write

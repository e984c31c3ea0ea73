"""bitsandbytes, read without it: 4-bit codes into a table of 16 numbers, or int8 rows.

Stored in 4 bits (nf4, fp4) for a matrix of N rows and K inputs, as one run of N*K weights:
  weight [N*K/2, 1] uint8, the first of two weights in the high bits
  weight.quant_map [16]: the table    weight.absmax: a scale for each block of the run
  weight.quant_state.bitsandbytes__KIND: JSON with the block's size
  when the scales are quantised themselves (double quantisation), absmax is uint8 and there are
  weight.nested_quant_map [256] and weight.nested_absmax, and an offset in the JSON
Stored in int8: weight [N, K] int8 and SCB [N], the largest weight of each row.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import torch

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.format import Stored, TensorInfos, check_multiple
from octavo_engine.quantization.without_kernel import WithoutKernel

STATE_PREFIX = "weight.quant_state.bitsandbytes__"
INT8_TOP = 127.0
ROW_MAJOR = 0


class QuantState(msgspec.Struct, frozen=True, kw_only=True):
    """The stored JSON, as far as it is needed."""

    blocksize: int
    shape: tuple[int, ...]
    nested_blocksize: int | None = None
    nested_offset: float | None = None


@dataclass(frozen=True)
class Bnb4BitFormat(WithoutKernel):
    kind: str
    """nf4 or fp4; the stored table says what the codes mean."""

    def describe(self) -> str:
        return f"4 bits, {self.kind}"

    def is_used_by(self, module: str, infos: TensorInfos) -> bool:
        info = infos.get(f"{module}.weight")
        return info is not None and info.dtype == "U8"

    def tensors(self, module: str, shape: tuple[int, int], infos: TensorInfos) -> dict[str, Stored]:
        num_weights = shape[0] * shape[1]
        check_multiple(module, "weights", num_weights, 2, "two are stored in a byte")
        state, absmax = f"{STATE_PREFIX}{self.kind}", "weight.absmax"
        found = {
            "weight": Stored((num_weights // 2, 1), ("U8",)),
            "weight.quant_map": Stored((16,), ("F32",)),
            # Their lengths are checked with the JSON: it holds the size of a block.
            absmax: Stored(_shape(f"{module}.{absmax}", infos), ("F32", "U8")),
            state: Stored(_shape(f"{module}.{state}", infos), ("U8",)),
        }
        nested = "weight.nested_absmax"
        if f"{module}.{nested}" in infos:
            found[nested] = Stored(_shape(f"{module}.{nested}", infos), ("F32",))
            found["weight.nested_quant_map"] = Stored((256,), ("F32",))
        return found

    def dequantize(
        self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]
    ) -> torch.Tensor:
        state = _read_state(stored[f"{STATE_PREFIX}{self.kind}"])
        if state.shape != shape:
            raise CheckpointError(
                f"its quant_state says {list(state.shape)}, the config asks for {list(shape)}"
            )
        scales = _scales(stored, state)
        num_weights = shape[0] * shape[1]
        if len(scales) != -(-num_weights // state.blocksize):
            raise CheckpointError(
                f"{len(scales)} scales for {num_weights} weights in blocks of {state.blocksize}"
            )
        packed = stored["weight"].flatten()
        codes = torch.stack([packed >> 4, packed & 15], dim=1).flatten()
        weight = stored["weight.quant_map"][codes.long()]
        spread = scales.repeat_interleave(state.blocksize)[:num_weights]
        return weight.mul_(spread).reshape(shape)


def _shape(name: str, infos: TensorInfos) -> tuple[int, ...]:
    return infos[name].shape if name in infos else ()


def _read_state(raw: torch.Tensor) -> QuantState:
    try:
        state = msgspec.json.decode(bytes(raw.tolist()), type=QuantState)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"its quant_state is not readable: {error}") from error
    if state.blocksize < 1 or (state.nested_blocksize or 1) < 1:
        raise CheckpointError(f"its quant_state has blocks of no positive size: {state}")
    return state


def _scales(stored: Mapping[str, torch.Tensor], state: QuantState) -> torch.Tensor:
    """[number of blocks] float32."""
    absmax = stored["weight.absmax"]
    if absmax.dtype != torch.uint8:
        return absmax
    nested = stored.get("weight.nested_absmax")
    if nested is None or state.nested_blocksize is None or state.nested_offset is None:
        raise CheckpointError("its scales are uint8, but what they are scaled by is missing")
    if len(nested) != -(-len(absmax) // state.nested_blocksize):
        raise CheckpointError(
            f"{len(nested)} nested scales for {len(absmax)} scales in blocks of "
            f"{state.nested_blocksize}"
        )
    spread = nested.repeat_interleave(state.nested_blocksize)[: len(absmax)]
    return stored["weight.nested_quant_map"][absmax.long()] * spread + state.nested_offset


@dataclass(frozen=True)
class BnbInt8Format(WithoutKernel):
    def describe(self) -> str:
        return "int8, one scale a row, weights only"

    def is_used_by(self, module: str, infos: TensorInfos) -> bool:
        info = infos.get(f"{module}.weight")
        return info is not None and info.dtype == "I8"

    def tensors(self, module: str, shape: tuple[int, int], infos: TensorInfos) -> dict[str, Stored]:
        found = {"weight": Stored(shape, ("I8",)), "SCB": Stored((shape[0],))}
        if f"{module}.weight_format" in infos:
            found["weight_format"] = Stored((), ("U8",))
        return found

    def dequantize(
        self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]
    ) -> torch.Tensor:
        layout = stored.get("weight_format")
        if layout is not None and int(layout) != ROW_MAJOR:
            raise CheckpointError(f"weight_format {int(layout)} is not supported, only 0 (by rows)")
        return stored["weight"].float().mul_(stored["SCB"].float()[:, None] / INT8_TOP)

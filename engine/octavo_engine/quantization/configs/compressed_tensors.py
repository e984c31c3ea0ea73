"""The config of compressed-tensors (llm-compressor): groups of modules with a scheme for each."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.configs.common import EVERYTHING, read_group_size
from octavo_engine.quantization.format import WeightFormat
from octavo_engine.quantization.fp4 import GROUP_SIZES, Fp4Format, Fp4Kind
from octavo_engine.quantization.inputs import InputFormat
from octavo_engine.quantization.packed import PackedFormat
from octavo_engine.quantization.scaled import PER_ROW, PER_TENSOR, ScaledFormat, Scales, ValueKind
from octavo_engine.quantization.scheme import LinearScheme, Matcher, Rule, Scheme

PACKED_BITS = (4, 8)
INPUT_BITS = 8
SCALED_FORMATS = ("int-quantized", "float-quantized", "naive-quantized")
FP4_FORMATS: Mapping[str, Fp4Kind] = {
    "mxfp4-pack-quantized": "mxfp4",
    "nvfp4-pack-quantized": "nvfp4",
}


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """How weights or inputs are quantised (QuantizationArgs there)."""

    num_bits: int = 8
    type: str = "int"
    strategy: str | None = None
    symmetric: bool = True
    dynamic: bool | str = False
    group_size: int | None = None
    block_structure: tuple[int, int] | str | None = None

    def kind(self) -> ValueKind:
        """Of what is stored: integers of 4 bits lie in 8 unless they are packed."""
        if self.type == "int" and self.num_bits in PACKED_BITS:
            return "int8"
        if self.type == "float" and self.num_bits == 8:
            return "fp8"
        raise CheckpointError(
            f"type {self.type!r} of {self.num_bits} bits is not supported, only int of 4 and 8 and "
            "float of 8"
        )

    def resolved_strategy(self) -> str:
        if self.strategy is not None:
            return self.strategy
        return "tensor" if self.group_size is None else "group"

    def num_inputs_of_group(self) -> int | None:
        """None: one group a row."""
        if self.resolved_strategy() == "channel":
            return None
        if self.group_size is None:
            raise CheckpointError("strategy 'group' without a group_size")
        return read_group_size(self.group_size)


class ConfigGroup(msgspec.Struct, frozen=True, kw_only=True):
    targets: list[str]
    weights: Numbers | None = None
    input_activations: Numbers | None = None
    output_activations: dict[str, Any] | None = None
    format: str | None = None


class CompressedTensorsConfig(msgspec.Struct, frozen=True, kw_only=True):
    config_groups: dict[str, ConfigGroup]
    format: str | None = None
    ignore: list[str] | None = None
    kv_cache_scheme: dict[str, Any] | None = None
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None

    def scheme(self) -> Scheme:
        if not self.config_groups:
            raise CheckpointError("config_groups is empty")
        self._refuse_transforms()
        left_out = [Rule(_matcher(target), None) for target in self.ignore or []]
        groups = [
            Rule(_matcher(target), self._linear(name, group))
            for name, group in self.config_groups.items()
            for target in group.targets
        ]
        return Scheme(
            method="compressed-tensors",
            # A module named outright goes before a pattern, a pattern before a class of modules.
            rules=(*left_out, *sorted(groups, key=lambda rule: _PRECEDENCE[rule.matcher.kind])),
            has_kv_scales=self.kv_cache_scheme is not None,
        )

    def _refuse_transforms(self) -> None:
        sparsity = (self.sparsity_config or {}).get("format", "dense")
        if sparsity != "dense":
            raise CheckpointError(f"sparsity format {sparsity!r} is not supported, only dense")
        if groups := (self.transform_config or {}).get("config_groups"):
            raise CheckpointError(f"transforms {', '.join(groups)} are not supported")

    def _linear(self, name: str, group: ConfigGroup) -> LinearScheme:
        try:
            if group.weights is None:
                raise CheckpointError("weights are not quantised: nothing to do for this group")
            if group.output_activations is not None:
                raise CheckpointError("output_activations are not supported")
            weights = _weight_format(group.format or self.format, group.weights)
            inputs = group.input_activations
            if inputs is not None and inputs.num_bits == 4 and isinstance(weights, Fp4Format):
                _check_fp4(weights.kind, "inputs", inputs)
                return LinearScheme(weights=replace(weights, has_fp4_inputs=True))
            return LinearScheme(
                weights=weights, inputs=None if inputs is None else _input_format(inputs)
            )
        except CheckpointError as error:
            raise CheckpointError(f"{name}: {error}") from error


_PRECEDENCE = {"exact": 0, "part": 1, "regex": 1, "all": 2}


def _matcher(target: str) -> Matcher:
    if target.startswith("re:"):
        return Matcher("regex", target.removeprefix("re:"))
    return EVERYTHING if target == "Linear" else Matcher("exact", target)


def _weight_format(file_format: str | None, numbers: Numbers) -> WeightFormat:
    if numbers.dynamic:
        raise CheckpointError("weights with dynamic scales are not supported")
    if file_format == "pack-quantized":
        return _packed_format(numbers)
    if file_format is not None and (fp4 := FP4_FORMATS.get(file_format)) is not None:
        _check_fp4(fp4, "weights", numbers)
        return Fp4Format(fp4)
    if file_format is None or file_format in SCALED_FORMATS:
        kind = numbers.kind()
        if kind == "fp8" and not numbers.symmetric:
            raise CheckpointError("asymmetric float weights are not supported")
        return ScaledFormat(kind=kind, scales=_scales(numbers), is_symmetric=numbers.symmetric)
    raise CheckpointError(
        f"format {file_format!r} is not supported, only pack-quantized, "
        f"{', '.join((*SCALED_FORMATS, *FP4_FORMATS))}"
    )


def _check_fp4(kind: Fp4Kind, what: str, numbers: Numbers) -> None:
    wanted = ("float", 4, GROUP_SIZES[kind])
    if (numbers.type, numbers.num_bits, numbers.group_size) != wanted or not numbers.symmetric:
        raise CheckpointError(
            f"{what} in {kind} of type {numbers.type!r}, {numbers.num_bits} bits, group_size "
            f"{numbers.group_size}, symmetric {numbers.symmetric} are not supported, only "
            f"symmetric float of 4 bits in groups of {GROUP_SIZES[kind]}"
        )


def _packed_format(numbers: Numbers) -> PackedFormat:
    if numbers.type != "int" or numbers.num_bits not in PACKED_BITS:
        raise CheckpointError(
            f"pack-quantized {numbers.type} of {numbers.num_bits} bits is not supported, only int "
            "of 4 and 8"
        )
    if numbers.resolved_strategy() not in ("group", "channel"):
        raise CheckpointError(
            f"pack-quantized with strategy {numbers.resolved_strategy()!r} is not supported, only "
            "group and channel"
        )
    return PackedFormat(
        bits=numbers.num_bits,
        group_size=numbers.num_inputs_of_group(),
        is_symmetric=numbers.symmetric,
    )


def _scales(numbers: Numbers) -> Scales:
    match numbers.resolved_strategy():
        case "tensor":
            return PER_TENSOR
        case "channel":
            return PER_ROW
        case "group":
            return Scales(num_rows=1, num_inputs=numbers.num_inputs_of_group())
        case "block":
            return _block_scales(numbers.block_structure)
        case strategy:
            raise CheckpointError(
                f"weights with strategy {strategy!r} are not supported, only tensor, channel, "
                "group and block"
            )


def _block_scales(structure: tuple[int, int] | str | None) -> Scales:
    """Older files write "128x128"."""
    if isinstance(structure, str):
        num_rows, _, num_inputs = structure.partition("x")
        if not (num_rows.isdigit() and num_inputs.isdigit()):
            raise CheckpointError(f"block_structure {structure!r} is not like 128x128")
        structure = (int(num_rows), int(num_inputs))
    if structure is None or min(structure) < 1:
        raise CheckpointError(f"block_structure {structure!r} is not two positive numbers")
    return Scales(num_rows=structure[0], num_inputs=structure[1])


def _input_format(numbers: Numbers) -> InputFormat:
    if numbers.num_bits != INPUT_BITS:
        raise CheckpointError(
            f"inputs of {numbers.num_bits} bits ({numbers.type}) are not supported, only of "
            f"{INPUT_BITS}"
        )
    kind: Literal["fp8", "int8"] = numbers.kind()
    strategy = numbers.resolved_strategy()
    if not isinstance(numbers.dynamic, bool):
        raise CheckpointError(f"inputs with dynamic {numbers.dynamic!r} are not supported")
    allowed = ("token", "tensor", "group") if numbers.dynamic else ("tensor",)
    if strategy not in allowed:
        raise CheckpointError(
            f"{'dynamic' if numbers.dynamic else 'static'} inputs with strategy {strategy!r} are "
            f"not supported, only {', '.join(allowed)}"
        )
    if not numbers.symmetric and not (kind == "int8" and numbers.dynamic):
        raise CheckpointError(
            "asymmetric inputs are supported for int8 with dynamic scales only, not "
            f"{kind} {'dynamic' if numbers.dynamic else 'static'}"
        )
    return InputFormat(
        kind=kind,
        is_dynamic=numbers.dynamic,
        # A dynamic scale for the whole tensor would couple the requests of a batch: see Fp8Config.
        group_size=numbers.num_inputs_of_group() if strategy == "group" else None,
        is_symmetric=numbers.symmetric,
    )

"""A scheme applied to one checkpoint: what fills a matrix, how a product's inputs are rounded.

Stands between layers and loader. Layers ask for the rounding of their inputs; the loader hands over
the layers' slots and gets those for the tensors that the file really holds. Knows no layer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import structlog
import torch

from octavo_engine.errors import CheckpointError
from octavo_engine.loading.slots import Slot
from octavo_engine.parallel.group import Group
from octavo_engine.parallel.shares import Share
from octavo_engine.quantization.assembly import Assembly, must_be_zero
from octavo_engine.quantization.format import TensorInfos
from octavo_engine.quantization.inputs import InputFormat
from octavo_engine.quantization.mxfp4 import Mxfp4Experts
from octavo_engine.quantization.rounding import (
    DynamicRounding,
    InputRounding,
    SharedDynamicRounding,
    StaticRounding,
)
from octavo_engine.quantization.scheme import LinearScheme, Scheme

log = structlog.get_logger(__name__)

UNUSED_SUFFIXES = ("bias", "weight_zero_point", "input_zero_point")
"""Written by some tools where there is nothing to say; accepted as long as they are zero."""
KV_SCALE_SUFFIXES = (
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".kv_scale",
    ".k_proj.output_scale",
    ".v_proj.output_scale",
)
MATRIX_DIMS = 2


class QuantizedCheckpoint:
    def __init__(self, scheme: Scheme, infos: TensorInfos, device: torch.device) -> None:
        """device: where matrices are dequantised."""
        self._scheme = scheme
        self._infos = infos
        self._device = device
        self._linears = tuple(scheme.linears())
        self._found: dict[str, LinearScheme | None] = {}
        self._packed_bytes = 0
        self._num_dequantized = 0

    def count_packed(self, num_bytes: int) -> None:
        """A product's weights stay quantised in so much memory, scales included."""
        self._packed_bytes += num_bytes

    def log_memory(self) -> None:
        """After loading."""
        log.info(
            "weights_quantized",
            scheme=self._scheme.describe(),
            quantized_gib=f"{self._packed_bytes / 2**30:.2f}",
            num_dequantized=self._num_dequantized,
        )

    def linear(self, module: str) -> LinearScheme | None:
        """How this module is quantised; None: it is not.

        The tensors decide: lists of modules left out are meant differently by every tool, and what
        the file holds can be read in one way only. The config decides between schemes.
        """
        if module not in self._found:
            self._found[module] = self._find(module)
        return self._found[module]

    def _find(self, module: str) -> LinearScheme | None:
        named = self._scheme.linear(module)
        if self._scheme.is_at_load:
            return named
        for linear in (named, *self._linears):
            if linear is not None and linear.weights.is_used_by(module, self._infos):
                return linear
        return None if f"{module}.weight" in self._infos else named

    def input_rounding(self, modules: Sequence[str], device: torch.device) -> InputRounding | None:
        """For the modules that are packed into one product and so share its inputs.

        Raises CheckpointError where they do not agree.
        """
        inputs = self._common_inputs(modules)
        if inputs is None:
            return None
        if inputs.is_dynamic:
            return DynamicRounding(inputs)
        return StaticRounding(inputs, modules, self._infos, device)

    def shared_input_rounding(
        self,
        modules: Sequence[str],
        device: torch.device,
        in_features: int,
        share: Share,
        group: Group,
    ) -> InputRounding | None:
        """As `input_rounding`, for a rank that has a share of the in_features."""
        inputs = self._common_inputs(modules)
        if inputs is None or not inputs.is_dynamic:
            return self.input_rounding(modules, device)
        return SharedDynamicRounding(inputs, in_features, share, group)

    def _common_inputs(self, modules: Sequence[str]) -> InputFormat | None:
        linears = {module: self.linear(module) for module in modules}
        formats = {linear.inputs if linear is not None else None for linear in linears.values()}
        if len(formats) > 1:
            said = "; ".join(
                f"{module!r}: {'not quantised' if linear is None else linear.describe()}"
                for module, linear in linears.items()
            )
            raise CheckpointError(f"modules with the same inputs round them differently: {said}")
        (inputs,) = formats
        return inputs

    def slots(self, slots: Iterable[Slot]) -> list[Slot]:
        """The layers' slots with those of quantised matrices replaced by slots of what is stored.

        Raises CheckpointError when no matrix at all is stored as the config says.
        """
        found: list[Slot] = []
        unused: list[Slot] = []
        num_quantized = self._num_dequantized = 0
        for slot in slots:
            self._refuse_joined_experts(slot)
            if (experts := self._experts(slot)) is not None:
                num_quantized += 1
                self._num_dequantized += 1
                found += self._expert_slots(slot, experts)
                continue
            module = slot.name.removesuffix(".weight")
            linear = self.linear(module) if slot.is_matrix else None
            if linear is None:
                found.append(slot)
                continue
            num_quantized += 1
            self._num_dequantized += slot.write_quantized is None
            found += self._stored_slots(slot, module, linear)
            unused += self._unused_slots(module)
        if not num_quantized:
            raise CheckpointError(
                f"the config says {self._scheme.describe()}, but no matrix of the model is so"
            )
        names = {slot.name for slot in found}
        return found + [slot for slot in unused if slot.name not in names]

    def _refuse_joined_experts(self, slot: Slot) -> None:
        if self._scheme.is_at_load and len(slot.shape) > MATRIX_DIMS:
            raise CheckpointError(
                f"tensor {slot.name!r} holds all experts {list(slot.shape)}: such models cannot be "
                f"quantised at load to {self._scheme.method}"
            )

    def _stored_slots(self, slot: Slot, module: str, linear: LinearScheme) -> Iterator[Slot]:
        num_rows, in_features = slot.shape
        shape = (num_rows, in_features)
        stored = linear.weights.tensors(module, shape, self._infos)
        assembly = Assembly(
            module,
            frozenset(stored),
            device=self._device,
            finish=self._writer(slot, shape, linear),
        )
        for suffix, tensor in stored.items():
            name = f"{module}.{suffix}"
            yield Slot(name, tensor.shape, assembly.taker(suffix), dtypes=tensor.dtypes)

    def _experts(self, slot: Slot) -> Mxfp4Experts | None:
        """How the weights of all experts in one are quantised; None: they are not."""
        linear = self.linear(slot.name) if slot.is_experts else None
        if linear is None or not isinstance(linear.weights, Mxfp4Experts):
            return None
        return linear.weights

    def _expert_slots(self, slot: Slot, experts: Mxfp4Experts) -> Iterator[Slot]:
        num_experts, in_features, num_rows = slot.shape
        shape = (num_experts, num_rows, in_features)
        stored = experts.tensors(slot.name, shape, self._infos)

        def write(held: dict[str, torch.Tensor]) -> None:
            slot.write(experts.dequantize(held, shape).transpose(1, 2))

        assembly = Assembly(slot.name, frozenset(stored), device=self._device, finish=write)
        for suffix, tensor in stored.items():
            name = f"{slot.name}_{suffix}"
            yield Slot(name, tensor.shape, assembly.taker(suffix), dtypes=tensor.dtypes)

    def _writer(
        self, slot: Slot, shape: tuple[int, int], linear: LinearScheme
    ) -> Callable[[dict[str, torch.Tensor]], None]:
        take, weights = slot.write_quantized, linear.weights

        def write(stored: dict[str, torch.Tensor]) -> None:
            slot.write(weights.dequantize(stored, shape))

        def write_quantized(stored: dict[str, torch.Tensor]) -> None:
            assert take is not None
            take(weights.read(stored, shape))

        return write if take is None else write_quantized

    def _unused_slots(self, module: str) -> Iterator[Slot]:
        for suffix in UNUSED_SUFFIXES:
            name = f"{module}.{suffix}"
            if (info := self._infos.get(name)) is not None:
                yield Slot(name, info.shape, must_be_zero(name), dtypes=(info.dtype,))

    def ignored_names(self) -> frozenset[str]:
        """Scales of a quantised KV cache, which are no layer's: see `loading.kv_scales`."""
        return frozenset(name for name in self._infos if name.endswith(KV_SCALE_SUFFIXES))

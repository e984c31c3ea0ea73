"""auto-round's own method name, over the file formats of GPTQ, AWQ and FP8."""

from typing import Any

import msgspec

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.configs.awq import AwqConfig
from octavo_engine.quantization.configs.common import EVERYTHING
from octavo_engine.quantization.configs.fp8 import Fp8Config
from octavo_engine.quantization.configs.gptq import GptqConfig
from octavo_engine.quantization.scheme import LinearScheme, Matcher, Method, Rule, Scheme

UNQUANTIZED_BITS = 16
GPTQ_FORMATS = {"auto_gptq": "gptq", "gptqmodel": "gptq_v2", "auto_round": "gptq_v2"}
"""By packing: which of GPTQ's. Asymmetric weights are written as plain `auto_round`."""
AWQ_PACKING = "auto_awq"
FP8_PACKINGS = ("fp8", "fp8_static")
ROW, TENSOR = -1, 0
"""Group sizes with one scale for all of these."""


class AutoRoundConfig(msgspec.Struct, frozen=True, kw_only=True):
    bits: int
    group_size: int | tuple[int, int]
    """Inputs with one scale; of FP8 blocks, rows and inputs."""
    sym: bool = True
    data_type: str = "int"
    act_bits: int | None = None
    packing_format: str = "auto_round:auto_gptq"
    fmt: str = "e4m3"
    activation_scheme: str = "dynamic"
    weight_block_size: tuple[int, int] | None = None
    extra_config: dict[str, dict[str, Any]] | None = None
    """Module names, or regular expressions of them, to changed settings."""

    def scheme(self) -> Scheme:
        exceptions = [self._exception(name, say) for name, say in (self.extra_config or {}).items()]
        method: Method = "gptq"
        if self._packing() == AWQ_PACKING:
            method = "awq"
        elif self._packing() in FP8_PACKINGS:
            method = "fp8"
        return Scheme(method=method, rules=(*exceptions, Rule(EVERYTHING, self.linear())))

    def linear(self) -> LinearScheme:
        if self._packing() in FP8_PACKINGS:
            return self._fp8().linear()
        if isinstance(self.group_size, tuple):
            raise CheckpointError(
                f"auto-round with group_size {list(self.group_size)} is not supported, only of fp8"
            )
        if self.data_type != "int":
            raise CheckpointError(
                f"auto-round data_type {self.data_type!r} is not supported, only int"
            )
        if self.act_bits is not None and self.act_bits < UNQUANTIZED_BITS:
            raise CheckpointError(f"auto-round with act_bits {self.act_bits} is not supported")
        if self._packing() == AWQ_PACKING:
            return AwqConfig(bits=self.bits, group_size=self.group_size).linear()
        return GptqConfig(
            bits=self.bits,
            group_size=self.group_size,
            sym=self.sym,
            checkpoint_format=GPTQ_FORMATS[self._packing()],
        ).linear()

    def _fp8(self) -> Fp8Config:
        numbers = (self.data_type, self.bits, self.act_bits)
        if numbers != ("fp", 8, 8):
            raise CheckpointError(
                f"auto-round {self._packing()} of data_type {self.data_type!r}, {self.bits} bits, "
                f"act_bits {self.act_bits} is not supported, only fp of 8 and 8"
            )
        block = self.weight_block_size
        if self.group_size not in ((ROW, TENSOR) if block is None else (block,)):
            said = "none" if block is None else list(block)
            raise CheckpointError(
                f"auto-round {self._packing()} with group_size {self.group_size} and "
                f"weight_block_size {said} is not supported: blocks are both, a row is "
                f"{ROW}, a tensor {TENSOR}"
            )
        return Fp8Config(
            activation_scheme=self.activation_scheme,
            weight_block_size=block,
            fmt=self.fmt,
        )

    def _packing(self) -> str:
        known = (*GPTQ_FORMATS, AWQ_PACKING, *FP8_PACKINGS)
        packing = self.packing_format.removeprefix("auto_round:")
        if packing not in known:
            raise CheckpointError(
                f"auto-round packing_format {self.packing_format!r} is not supported, only "
                f"{', '.join(known)}"
            )
        return packing

    def _exception(self, name: str, changes: dict[str, Any]) -> Rule:
        matcher = Matcher("regex", f"(?:{name})$")
        settings = {**msgspec.structs.asdict(self), **changes, "extra_config": None}
        changed = msgspec.convert(settings, AutoRoundConfig)
        return Rule(matcher, None if changed.bits >= UNQUANTIZED_BITS else changed.linear())

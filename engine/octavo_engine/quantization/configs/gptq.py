"""What GPTQModel, AutoGPTQ and optimum write, as far as it changes how the file is read."""

from typing import Any

import msgspec

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.configs.common import (
    EVERYTHING,
    check_pack_dtype,
    read_group_size,
)
from octavo_engine.quantization.gptq import GptqFormat
from octavo_engine.quantization.scheme import LinearScheme, Matcher, Rule, Scheme

SUPPORTED_BITS = (4, 8)


class GptqConfig(msgspec.Struct, frozen=True, kw_only=True):
    bits: int
    group_size: int
    desc_act: bool = False
    sym: bool = True
    checkpoint_format: str | None = None
    format: str | None = None
    pack_dtype: str = "int32"
    is_marlin_format: bool = False
    rotation: str | None = None
    dynamic: dict[str, dict[str, Any]] | None = None
    """Regular expressions of module names to changed settings; those after `-:` are left out."""

    def scheme(self) -> Scheme:
        exceptions = [
            self._exception(pattern, changes) for pattern, changes in (self.dynamic or {}).items()
        ]
        return Scheme(method="gptq", rules=(*exceptions, Rule(EVERYTHING, self.linear())))

    def linear(self) -> LinearScheme:
        file_format = self.checkpoint_format or self.format or "gptq"
        if self.is_marlin_format or file_format not in ("gptq", "gptq_v2"):
            named = "marlin" if self.is_marlin_format else file_format
            raise CheckpointError(f"gptq format {named!r} is not supported, only gptq and gptq_v2")
        check_pack_dtype("gptq", self.pack_dtype)
        if self.rotation:
            raise CheckpointError(f"gptq rotation {self.rotation!r} is not supported")
        if self.bits not in SUPPORTED_BITS:
            raise CheckpointError(f"gptq with {self.bits} bits is not supported, only 4 and 8")
        return LinearScheme(
            weights=GptqFormat(
                bits=self.bits,
                group_size=read_group_size(self.group_size),
                is_symmetric=self.sym,
                uses_act_order=self.desc_act,
                zero_offset=0 if file_format == "gptq_v2" else 1,
            )
        )

    def _exception(self, pattern: str, changes: dict[str, Any]) -> Rule:
        regex = Matcher("regex", pattern.removeprefix("+:").removeprefix("-:"))
        if pattern.startswith("-:"):
            return Rule(regex, None)
        settings = {**msgspec.structs.asdict(self), **changes, "dynamic": None}
        return Rule(regex, msgspec.convert(settings, GptqConfig).linear())

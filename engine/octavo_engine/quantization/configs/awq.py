"""What AutoAWQ and others write; AutoAWQ's own older file has the names w_bit and q_group_size."""

import msgspec

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.awq import AwqFormat
from octavo_engine.quantization.configs.common import (
    EVERYTHING,
    check_pack_dtype,
    read_group_size,
)
from octavo_engine.quantization.scheme import LinearScheme, Matcher, Rule, Scheme


class AwqConfig(msgspec.Struct, frozen=True, kw_only=True):
    bits: int | None = None
    w_bit: int | None = None
    group_size: int | None = None
    q_group_size: int | None = None
    version: str | None = None
    checkpoint_format: str | None = None
    format: str | None = None
    pack_dtype: str = "int32"
    modules_to_not_convert: list[str] | None = None

    def scheme(self) -> Scheme:
        left_out = [Rule(Matcher("part", part), None) for part in self.modules_to_not_convert or []]
        return Scheme(method="awq", rules=(*left_out, Rule(EVERYTHING, self.linear())))

    def linear(self) -> LinearScheme:
        version = (self.version or self.checkpoint_format or self.format or "gemm").lower()
        if version != "gemm":
            raise CheckpointError(f"awq version {version!r} is not supported, only gemm")
        check_pack_dtype("awq", self.pack_dtype)
        bits = self.bits if self.bits is not None else self.w_bit
        if bits != AwqFormat.bits:
            raise CheckpointError(f"awq with {bits} bits is not supported, only {AwqFormat.bits}")
        group_size = self.group_size if self.group_size is not None else self.q_group_size
        if group_size is None:
            raise CheckpointError("awq without a group_size")
        return LinearScheme(weights=AwqFormat(group_size=read_group_size(group_size)))

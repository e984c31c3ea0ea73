"""The config with quant_method fp8: DeepSeek's blocks, or AutoFP8's one scale a tensor."""

from typing import Any

import msgspec

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.configs.common import EVERYTHING
from octavo_engine.quantization.inputs import InputFormat
from octavo_engine.quantization.scaled import ScaledFormat, Scales
from octavo_engine.quantization.scheme import LinearScheme, Matcher, Rule, Scheme


class Fp8Config(msgspec.Struct, frozen=True, kw_only=True):
    activation_scheme: str = "dynamic"
    weight_block_size: tuple[int, int] | None = None
    fmt: str = "e4m3"
    modules_to_not_convert: list[str] | None = None
    ignored_layers: list[str] | None = None
    kv_cache_scheme: Any = None

    def scheme(self) -> Scheme:
        names = [*(self.modules_to_not_convert or []), *(self.ignored_layers or [])]
        left_out = [Rule(Matcher("exact", name), None) for name in names]
        return Scheme(
            method="fp8",
            rules=(*left_out, Rule(EVERYTHING, self.linear())),
            has_kv_scales=bool(self.kv_cache_scheme),
        )

    def linear(self) -> LinearScheme:
        self._check()
        block = self.weight_block_size
        scales = None if block is None else Scales(num_rows=block[0], num_inputs=block[1])
        return LinearScheme(
            weights=ScaledFormat(kind="fp8", scales=scales),
            # One scale for a whole batch would let one request's inputs change another's result:
            # where the config asks for that, each token gets its own, which is finer.
            inputs=InputFormat(
                kind="fp8",
                is_dynamic=self.activation_scheme == "dynamic",
                group_size=None if block is None else block[1],
            ),
        )

    def _check(self) -> None:
        block = self.weight_block_size
        if self.fmt.lower() not in ("e4m3", "float8_e4m3fn"):
            raise CheckpointError(f"fp8 numbers {self.fmt!r} are not supported, only e4m3")
        if self.activation_scheme not in ("dynamic", "static"):
            raise CheckpointError(
                f"activation_scheme {self.activation_scheme!r} is not supported, only dynamic and "
                "static"
            )
        if block is not None and min(block) < 1:
            raise CheckpointError(f"weight_block_size {list(block)} is not positive")
        if block is not None and self.activation_scheme == "static":
            raise CheckpointError(
                f"activation_scheme 'static' contradicts weight_block_size {list(block)}: blocks "
                "of weights go with dynamic scales of the inputs"
            )

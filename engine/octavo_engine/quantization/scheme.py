"""A checkpoint's quantisation as its config says it: which modules, stored how, inputs rounded how.

Plain frozen data; knows no tensor and no file. `read_config` makes it, `checkpoint` applies it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.format import WeightFormat
from octavo_engine.quantization.inputs import InputFormat

Method = Literal["gptq", "awq", "compressed-tensors", "fp8", "int8", "bitsandbytes", "mxfp4"]


@dataclass(frozen=True, kw_only=True)
class LinearScheme:
    weights: WeightFormat
    inputs: InputFormat | None = None
    """None: inputs stay in the model's dtype."""

    def describe(self) -> str:
        inputs = "" if self.inputs is None else f"; {self.inputs.describe()}"
        return self.weights.describe() + inputs


@dataclass(frozen=True)
class Matcher:
    """Tells modules by name; what a pattern means differs between the tools that write configs."""

    kind: Literal["all", "exact", "part", "regex"]
    """part: anywhere in the name, between dots or not; regex: from the beginning."""
    pattern: str = ""

    def __post_init__(self) -> None:
        if self.kind == "regex":
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise CheckpointError(
                    f"{self.pattern!r} is not a regular expression: {error}"
                ) from error

    def matches(self, module: str) -> bool:
        match self.kind:
            case "all":
                return True
            case "exact":
                return module == self.pattern or module.endswith(f".{self.pattern}")
            case "part":
                return self.pattern in module
            case "regex":
                return re.match(self.pattern, module) is not None


@dataclass(frozen=True)
class Rule:
    matcher: Matcher
    scheme: LinearScheme | None
    """None: these modules are not quantised."""


@dataclass(frozen=True, kw_only=True)
class Scheme:
    method: Method
    rules: tuple[Rule, ...]
    """The first one that matches decides; a module that none matches is not quantised."""
    is_at_load: bool = False
    """Whether the weights are quantised by us, from a checkpoint that is not."""
    has_kv_scales: bool = False
    """Whether the checkpoint asks for a quantised KV cache and holds scales for it."""

    def linear(self, module: str) -> LinearScheme | None:
        return next((rule.scheme for rule in self.rules if rule.matcher.matches(module)), None)

    def linears(self) -> Iterator[LinearScheme]:
        """Every different one."""
        yield from dict.fromkeys(rule.scheme for rule in self.rules if rule.scheme is not None)

    def describe(self) -> str:
        return f"{self.method} ({' | '.join(linear.describe() for linear in self.linears())})"

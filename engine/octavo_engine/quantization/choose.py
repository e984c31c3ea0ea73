"""Settles what was asked for with what the checkpoint holds. Pure."""

from octavo_engine.errors import ConfigError
from octavo_engine.quantization.at_load import AtLoadFormat
from octavo_engine.quantization.configs.common import EVERYTHING
from octavo_engine.quantization.inputs import InputFormat
from octavo_engine.quantization.scaled import ScaledFormat, ValueKind
from octavo_engine.quantization.scheme import LinearScheme, Matcher, Rule, Scheme

CHOICES = (
    "auto", "none", "gptq", "awq", "compressed-tensors", "bitsandbytes", "mxfp4", "fp8", "int8",
)  # fmt: skip
UNQUANTIZED_MODULES = ("lm_head",)


def choose_scheme(asked: str, checkpoint: Scheme | None, *, is_gguf: bool) -> Scheme | None:
    """asked: the setting; checkpoint: what the files say, None when they are not quantised.

    Raises ConfigError, naming both, where they contradict each other.
    """
    if asked not in CHOICES:
        raise ConfigError(f"quantization {asked!r} is not supported, only {', '.join(CHOICES)}")
    if asked == "auto":
        return checkpoint
    if checkpoint is None:
        return _choose_unquantized(asked, is_gguf)
    if asked == checkpoint.method or (asked in ("fp8", "int8") and _holds(checkpoint, asked)):
        return checkpoint
    raise ConfigError(
        f"quantization {asked!r} was asked for, but the checkpoint is quantised already: "
        f"{checkpoint.describe()}"
    )


def _choose_unquantized(asked: str, is_gguf: bool) -> Scheme | None:
    if asked == "none":
        return None
    if is_gguf:
        raise ConfigError(
            f"quantization {asked!r} was asked for, but a GGUF file has its own; only auto and none"
        )
    if asked == "fp8":
        return at_load_scheme("fp8")
    if asked == "int8":
        return at_load_scheme("int8")
    raise ConfigError(
        f"quantization {asked!r} was asked for, but the checkpoint is not quantised; fp8 and int8 "
        "can be made while loading"
    )


def _holds(checkpoint: Scheme, kind: str) -> bool:
    """Whether all quantised weights of the checkpoint are stored in this kind of number."""
    return all(
        isinstance(linear.weights, ScaledFormat) and linear.weights.kind == kind
        for linear in checkpoint.linears()
    )


def at_load_scheme(kind: ValueKind) -> Scheme:
    """Every product's weights with one scale a row; the head stays.

    fp8 rounds inputs too, with one scale a token, for the sake of the hardware's product. int8
    leaves them: uncalibrated, that takes SmolLM2's perplexity from 21.9 to 23.2.
    """
    inputs = InputFormat(kind="fp8", is_dynamic=True) if kind == "fp8" else None
    linear = LinearScheme(weights=AtLoadFormat(kind), inputs=inputs)
    left_out = [Rule(Matcher("exact", module), None) for module in UNQUANTIZED_MODULES]
    return Scheme(method=kind, rules=(*left_out, Rule(EVERYTHING, linear)), is_at_load=True)

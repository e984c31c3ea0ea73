"""Checks a GPTQ scheme's zero points against a few modules of the files, and mends it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import structlog
import torch

from octavo_engine.quantization.bits import WORD_BITS
from octavo_engine.quantization.format import TensorInfos
from octavo_engine.quantization.gptq import GptqFormat
from octavo_engine.quantization.scheme import Rule, Scheme
from octavo_engine.quantization.zero_points import Sample, find_zero_offset

log = structlog.get_logger(__name__)

NUM_SAMPLES = 8
"""Modules read, spread over the model; each has hundreds of columns to average over."""


def settle_zero_points(
    scheme: Scheme,
    infos: TensorInfos,
    read: Callable[[Iterable[str]], Mapping[str, torch.Tensor]],
) -> Scheme:
    """The scheme with the convention of zero points that the data follow. read: tensors by name.

    Where the data do not tell, the config's word stands.
    """
    offsets: dict[GptqFormat, int] = {}
    for linear in scheme.linears():
        if isinstance(linear.weights, GptqFormat):
            fmt = linear.weights
            samples = _samples(scheme, fmt, infos, read)
            found = find_zero_offset(samples, fmt.bits)
            if found is not None and found != fmt.zero_offset:
                log.warning(
                    "gptq_zero_points_mislabelled",
                    config_says=_version(fmt.zero_offset),
                    data_say=_version(found),
                )
                offsets[fmt] = found
    return replace(scheme, rules=tuple(_mended(rule, offsets) for rule in scheme.rules))


def _samples(
    scheme: Scheme,
    fmt: GptqFormat,
    infos: TensorInfos,
    read: Callable[[Iterable[str]], Mapping[str, torch.Tensor]],
) -> list[Sample]:
    modules = [name.removesuffix(".qzeros") for name in sorted(infos) if name.endswith(".qzeros")]
    used = [
        module
        for module in modules
        if _is_whole(module, fmt.bits, infos)
        and (linear := scheme.linear(module)) is not None
        and linear.weights == fmt
    ]
    chosen = used[:: max(1, len(used) // NUM_SAMPLES)][:NUM_SAMPLES]
    tensors = read(f"{module}.{suffix}" for module in chosen for suffix in ("qweight", "qzeros"))
    return [Sample(tensors[f"{module}.qweight"], tensors[f"{module}.qzeros"]) for module in chosen]


def _is_whole(module: str, bits: int, infos: TensorInfos) -> bool:
    """Broken modules are refused later, with the numbers."""
    qzeros, qweight = infos[f"{module}.qzeros"], infos.get(f"{module}.qweight")
    return (
        qweight is not None
        and qweight.dtype == qzeros.dtype == "I32"
        and len(qweight.shape) == len(qzeros.shape) == 2
        and qweight.shape[1] * bits == qzeros.shape[1] * WORD_BITS
    )


def _version(zero_offset: int) -> str:
    return "v1" if zero_offset == 1 else "v2"


def _mended(rule: Rule, offsets: Mapping[GptqFormat, int]) -> Rule:
    linear = rule.scheme
    if linear is None or not isinstance(linear.weights, GptqFormat):
        return rule
    offset = offsets.get(linear.weights)
    if offset is None:
        return rule
    weights = replace(linear.weights, zero_offset=offset)
    return Rule(rule.matcher, replace(linear, weights=weights))

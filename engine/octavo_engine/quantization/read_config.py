"""Reads quantization_config into a Scheme; refuses what it does not know, naming the value.

Knows no tensors; what each kind of config means is in `configs`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.configs.auto_round import AutoRoundConfig
from octavo_engine.quantization.configs.awq import AwqConfig
from octavo_engine.quantization.configs.bitsandbytes import BitsAndBytesConfig
from octavo_engine.quantization.configs.common import QuantizationConfig
from octavo_engine.quantization.configs.compressed_tensors import CompressedTensorsConfig
from octavo_engine.quantization.configs.fp8 import Fp8Config
from octavo_engine.quantization.configs.gptq import GptqConfig
from octavo_engine.quantization.configs.mxfp4 import Mxfp4Config
from octavo_engine.quantization.format import TensorInfos
from octavo_engine.quantization.scheme import Scheme

CONFIGS: Mapping[str, type[QuantizationConfig]] = {
    "gptq": GptqConfig,
    "awq": AwqConfig,
    "fp8": Fp8Config,
    "compressed-tensors": CompressedTensorsConfig,
    "auto-round": AutoRoundConfig,
    "intel/auto-round": AutoRoundConfig,  # its name until 2025
    "bitsandbytes": BitsAndBytesConfig,
    "mxfp4": Mxfp4Config,
}

QUANTIZED_SUFFIXES = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv")


def read_scheme(raw: Mapping[str, Any], name: str) -> Scheme:
    """raw: the quantization_config; name: its file, for messages. Raises CheckpointError."""
    method = str(raw.get("quant_method"))
    if method not in CONFIGS:
        raise CheckpointError(
            f"{name}: quantization method {method!r} is not supported, only {', '.join(CONFIGS)}"
        )
    try:
        return msgspec.convert(dict(raw), CONFIGS[method]).scheme()
    except (msgspec.ValidationError, CheckpointError) as error:
        raise CheckpointError(f"{name}: quantization_config: {error}") from error


def refuse_unnamed_quantization(infos: TensorInfos) -> None:
    """For a checkpoint without a config of its quantisation: its tensors must be plain numbers."""
    for name, info in infos.items():
        if name.endswith(QUANTIZED_SUFFIXES):
            raise CheckpointError(
                f"{info.file}: tensor {name!r} belongs to a quantised matrix, but neither "
                "config.json nor quantize_config.json says how it is quantised"
            )

"""Reads quantization_config into a Scheme; refuses what it does not know, naming the value.

Knows no tensors; what each kind of config means is in `configs`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.configs.auto_round import AutoRoundConfig
from octavo_engine.quantization.configs.awq import AwqConfig
from octavo_engine.quantization.configs.common import QuantizationConfig
from octavo_engine.quantization.configs.compressed_tensors import CompressedTensorsConfig
from octavo_engine.quantization.configs.fp8 import Fp8Config
from octavo_engine.quantization.configs.gptq import GptqConfig
from octavo_engine.quantization.scheme import Scheme

CONFIGS: Mapping[str, type[QuantizationConfig]] = {
    "gptq": GptqConfig,
    "awq": AwqConfig,
    "fp8": Fp8Config,
    "compressed-tensors": CompressedTensorsConfig,
    "auto-round": AutoRoundConfig,
}


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

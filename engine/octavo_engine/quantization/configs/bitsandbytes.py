"""What transformers writes for bitsandbytes; the tensors tell which modules are left out."""

import msgspec

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.bitsandbytes import Bnb4BitFormat, BnbInt8Format
from octavo_engine.quantization.configs.common import EVERYTHING
from octavo_engine.quantization.scheme import LinearScheme, Rule, Scheme


class BitsAndBytesConfig(msgspec.Struct, frozen=True, kw_only=True):
    load_in_4bit: bool = False
    load_in_8bit: bool = False
    bnb_4bit_quant_type: str = "fp4"
    bnb_4bit_quant_storage: str = "uint8"

    def scheme(self) -> Scheme:
        return Scheme(method="bitsandbytes", rules=(Rule(EVERYTHING, self.linear()),))

    def linear(self) -> LinearScheme:
        if self.load_in_4bit == self.load_in_8bit:
            raise CheckpointError(
                f"load_in_4bit {self.load_in_4bit} and load_in_8bit {self.load_in_8bit}: just one "
                "must be true"
            )
        if self.load_in_8bit:
            return LinearScheme(weights=BnbInt8Format())
        kind, storage = self.bnb_4bit_quant_type, self.bnb_4bit_quant_storage
        if kind not in ("nf4", "fp4"):
            raise CheckpointError(f"bnb_4bit_quant_type {kind!r} is not supported, only nf4, fp4")
        if storage != "uint8":
            raise CheckpointError(
                f"bnb_4bit_quant_storage {storage!r} is not supported, only uint8"
            )
        return LinearScheme(weights=Bnb4BitFormat(kind))

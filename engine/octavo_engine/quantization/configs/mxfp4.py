"""What gpt-oss's checkpoints say: their experts are quantised, nothing else is."""

import msgspec

from octavo_engine.quantization.mxfp4 import Mxfp4Experts
from octavo_engine.quantization.scheme import LinearScheme, Matcher, Rule, Scheme

EXPERTS = Matcher("part", ".experts.")


class Mxfp4Config(msgspec.Struct, frozen=True, kw_only=True):
    def scheme(self) -> Scheme:
        return Scheme(method="mxfp4", rules=(Rule(EXPERTS, LinearScheme(weights=Mxfp4Experts())),))

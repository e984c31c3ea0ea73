"""From logits to token ids: what each request asks to change in the logits, then one draw for all rows."""

from octavo_engine.sampler.sampler import SampledRow, Sampler, SampleWork

__all__ = ["SampleWork", "SampledRow", "Sampler"]

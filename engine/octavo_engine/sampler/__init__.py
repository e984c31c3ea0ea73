"""From logits to token ids: what each request changes in its logits, then one draw for all."""

from octavo_engine.sampler.sampler import SampledRow, Sampler, SampleWork

__all__ = ["SampleWork", "SampledRow", "Sampler"]

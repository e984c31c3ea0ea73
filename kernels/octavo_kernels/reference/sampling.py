"""Chooses one token a row: greedy, or Gumbel-max among what top-k, top-p and min-p keep."""

import torch

from octavo_kernels.metadata import SamplingTensors
from octavo_kernels.reference.noise import gumbel_noise


def sample(logits: torch.Tensor, params: SamplingTensors) -> torch.Tensor:
    """logits[R, N] -> ids[R] int64; the lowest id wins a tie."""
    if params.all_greedy:
        return _argmax(logits)
    is_greedy = (params.temperature <= 0) | (params.top_k == 1)
    inverse = 1.0 / torch.where(is_greedy, 1.0, params.temperature)
    scaled = logits.float() * inverse.unsqueeze(-1)
    if params.any_filter:
        scaled = mask_filtered(scaled, params)
    token_ids = torch.arange(logits.shape[-1], device=logits.device)
    noise = gumbel_noise(params.seeds, params.positions, token_ids)
    return _argmax(scaled + torch.where(is_greedy.unsqueeze(-1), 0.0, noise))


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """The first of the largest. numpy's is vectorised, ten times as fast as torch's on a CPU."""
    if logits.is_cpu:
        return torch.from_numpy(logits.float().numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def mask_filtered(scaled: torch.Tensor, params: SamplingTensors) -> torch.Tensor:
    """scaled[R, N], logits / temperature in float32 -> the same, -inf where a filter drops it."""
    ordered = scaled.sort(dim=-1, descending=True).values
    num_tokens = scaled.shape[-1]
    top_k = torch.where(params.top_k <= 0, num_tokens, params.top_k).clamp(max=num_tokens).long()
    threshold = ordered.gather(-1, top_k.unsqueeze(-1) - 1)
    kept = ordered.masked_fill(ordered < threshold, -torch.inf)
    probabilities = kept.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    num_kept = (before < params.top_p.unsqueeze(-1)).sum(dim=-1, keepdim=True).clamp(min=1)
    threshold = torch.maximum(threshold, ordered.gather(-1, num_kept - 1))
    # log(0) is -inf: a min_p of 0 drops nothing.
    threshold = torch.maximum(threshold, ordered[:, :1] + params.min_p.log().unsqueeze(-1))
    return scaled.masked_fill(scaled < threshold, -torch.inf)

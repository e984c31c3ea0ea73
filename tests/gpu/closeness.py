"""Whether tokens are the choice of transformers' model on the same GPU, or nearly tied with it."""

from typing import Any

import torch

NEAR_TIE = 0.1
"""In standard deviations of a position's logits: bfloat16's own error stays below."""


def reference_logits(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocab_size]: what the reference would have chosen each token from."""
    with torch.inference_mode():
        ids = torch.tensor([prompt + tokens], device=model.device)
        logits: torch.Tensor = model(ids).logits[0, len(prompt) - 1 : -1].float()
    return logits


def assert_close(model: Any, prompt_ids: list[list[int]], outputs: list[list[int]]) -> None:
    """Every token is the reference's choice or nearly tied with it; nearly all are its choice."""
    num_same = num_all = 0
    for prompt, tokens in zip(prompt_ids, outputs, strict=True):
        logits = reference_logits(model, prompt, tokens)
        chosen = logits.gather(-1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
        gaps = (logits.max(dim=-1).values - chosen) / logits.std(dim=-1)
        assert gaps.max() < NEAR_TIE, f"position {int(gaps.argmax())}: {gaps.max():.3f} deviations"
        num_same += int((gaps == 0).sum())
        num_all += len(tokens)
    assert num_same >= 0.9 * num_all, f"{num_same} of {num_all} tokens are the reference's choice"

"""Changes each row's logits in the plainest way: one row and one change after the other."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from octavo_kernels.logit_changes import ANY_TOKEN, ForbiddenEndings, LogitChanges

NO_TOKEN = -2
"""Before the first token of the output: equals no id."""


def change_logits(logits: torch.Tensor, changes: Sequence[LogitChanges | None]) -> None:
    """Changes logits[R, N] float32 in place; changes[R]: None leaves a row as it is."""
    for row, wanted in zip(logits, changes, strict=True):
        if wanted is not None:
            _change_row(row, wanted)


def _change_row(logits: torch.Tensor, changes: LogitChanges) -> None:
    if changes.allowed is not None:
        logits.masked_fill_(~unpacked(changes.allowed, len(logits)), -torch.inf)
    if changes.forbidden_ids is not None:
        logits[changes.forbidden_ids] = -torch.inf
    if changes.endings is not None:
        _forbid_endings(logits, changes.history[changes.num_prompt_tokens :], changes.endings)
    if changes.bias_ids is not None and changes.biases is not None:
        logits[changes.bias_ids] += changes.biases
    if changes.repetition_penalty != 1.0:
        seen = logits[changes.history]
        penalty = changes.repetition_penalty
        logits[changes.history] = torch.where(seen > 0, seen / penalty, seen * penalty)
    if changes.presence_penalty != 0.0 or changes.frequency_penalty != 0.0:
        output = changes.history[changes.num_prompt_tokens :]
        counts = torch.zeros_like(logits)
        counts.index_add_(0, output, torch.ones_like(output, dtype=counts.dtype))
        logits -= changes.frequency_penalty * counts
        logits -= changes.presence_penalty * (counts > 0)


def unpacked(words: torch.Tensor, num_ids: int) -> torch.Tensor:
    """words[ceil(N / 32)] int32 -> [N] bool: the bits, lowest first."""
    shifts = torch.arange(8, dtype=torch.uint8, device=words.device)
    bits = (words.view(torch.uint8).unsqueeze(-1) >> shifts) & 1
    return bits.flatten()[:num_ids] != 0


def _forbid_endings(logits: torch.Tensor, output: torch.Tensor, endings: ForbiddenEndings) -> None:
    prefix_len = endings.prefixes.shape[1]
    recent = output[max(0, len(output) - prefix_len) :]
    recent = functional.pad(recent, (prefix_len - len(recent), 0), value=NO_TOKEN)
    matches = ((endings.prefixes == recent) | (endings.prefixes == ANY_TOKEN)).all(dim=1)
    penalty = torch.zeros_like(endings.last_ids, dtype=logits.dtype)
    logits.index_add_(0, endings.last_ids, penalty.masked_fill(matches, -torch.inf))

"""cos and sin for the tokens of a step: static tables, or rows made where lengths decide.

With `dynamic` and `longrope` the rotation follows the length of the whole sequence. As in the
reference, a prompt is rotated for its own length and each generated token for the length it makes;
chunks and recomputation change nothing. A `longrope` sequence that outgrows the original context is
computed anew by the scheduler (`EngineInfo.restart_len`), with the rotation of its new length.
"""

import torch

from octavo_engine.layers.context import RopeStep
from octavo_engine.rope import RopeConfig
from octavo_engine.rope_frequencies import cos_sin


class RopeTables:
    def __init__(
        self, configs: tuple[RopeConfig, ...], *, max_model_len: int, device: torch.device
    ) -> None:
        self._configs = configs
        self._device = device
        positions = torch.arange(max_model_len)
        self._short = [_on(device, cos_sin(config, positions)) for config in configs]
        self._long = {
            idx: _on(device, cos_sin(config, positions, seq_len=max_model_len))
            for idx, config in enumerate(configs)
            if config.kind == "longrope" and max_model_len > config.original_max_position_embeddings
        }

    def step(
        self, positions: torch.Tensor, token_seq_lens: torch.Tensor | None
    ) -> tuple[RopeStep, ...]:
        """positions[T]; token_seq_lens[T]: the sequence length each token is rotated for.

        token_seq_lens may be None when no config depends on lengths (`needs_seq_lens`).
        """
        return tuple(self._one(idx, positions, token_seq_lens) for idx in range(len(self._configs)))

    @property
    def needs_seq_lens(self) -> bool:
        return any(config.depends_on_length for config in self._configs)

    @property
    def turns_whole_sequences(self) -> bool:
        """Whether a sequence's length decides the rotation of all its tokens, old ones too."""
        return any(config.kind == "longrope" for config in self._configs)

    def _one(self, idx: int, positions: torch.Tensor, seq_lens: torch.Tensor | None) -> RopeStep:
        config = self._configs[idx]
        cos, sin = self._short[idx]
        if seq_lens is None or not config.depends_on_length:
            return RopeStep(cos, sin, positions)
        rows = torch.arange(len(positions), device=self._device)
        if config.kind == "longrope":
            if idx not in self._long:
                return RopeStep(cos, sin, positions)
            is_long = (seq_lens > config.original_max_position_embeddings).unsqueeze(-1)
            long_cos, long_sin = self._long[idx]
            return RopeStep(
                torch.where(is_long, long_cos[positions], cos[positions]),
                torch.where(is_long, long_sin[positions], sin[positions]),
                rows,
            )
        step_cos, step_sin = cos[positions], sin[positions]
        for seq_len in sorted(set(seq_lens.tolist())):
            if seq_len > config.max_position_embeddings:
                chosen = seq_lens == seq_len
                step_cos[chosen], step_sin[chosen] = _on(
                    self._device, cos_sin(config, positions[chosen].cpu(), seq_len)
                )
        return RopeStep(step_cos, step_sin, rows)


def _on(
    device: torch.device, pair: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    return pair[0].to(device), pair[1].to(device)

"""Gathers the stored tensors of one matrix as they come out of the files. Knows no format."""

from collections.abc import Callable

import torch

from octavo_engine.errors import CheckpointError


class Assembly:
    """Holds tensors until the last one is there, hands them over and lets them go."""

    def __init__(
        self,
        module: str,
        suffixes: frozenset[str],
        *,
        device: torch.device,
        finish: Callable[[dict[str, torch.Tensor]], None],
    ) -> None:
        self._module = module
        self._suffixes = suffixes
        self._device = device
        self._finish = finish
        self._held: dict[str, torch.Tensor] = {}

    def taker(self, suffix: str) -> Callable[[torch.Tensor], None]:
        def take(tensor: torch.Tensor) -> None:
            self._held[suffix] = tensor.to(self._device)
            if self._held.keys() == self._suffixes:
                self._hand_over()

        return take

    def _hand_over(self) -> None:
        held, self._held = self._held, {}
        try:
            self._finish(held)
        except CheckpointError as error:
            raise CheckpointError(f"module {self._module!r}: {error}") from error


def must_be_zero(name: str) -> Callable[[torch.Tensor], None]:
    """For a tensor that the model has no place for, which is harmless as long as it is zero."""

    def check(tensor: torch.Tensor) -> None:
        if bool(tensor.float().any()):
            raise CheckpointError(f"this model has no place for tensor {name!r}, which is not zero")

    return check

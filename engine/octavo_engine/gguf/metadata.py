"""Typed access to the key-value header of a GGUF file; every complaint names file and key."""

from typing import Any

import msgspec

from octavo_engine.errors import CheckpointError


class GGUFMetadata(msgspec.Struct, frozen=True):
    path: str
    """For messages only."""
    values: dict[str, Any]

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    def arch_key(self, suffix: str) -> str:
        """The key of an architecture's own setting, such as `llama.block_count`."""
        return f"{self.architecture}.{suffix}"

    def has(self, key: str) -> bool:
        return key in self.values

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, value, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, value, "a number")
        # Stored as float32: 9.999999747378752e-06 was written as 1e-05.
        return float(f"{value:.6g}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "a boolean")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._get(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, value, "a list of strings")
        return value

    def numbers(self, key: str) -> list[float]:
        value = self._get(key, None)
        if not isinstance(value, list) or not all(isinstance(item, int | float) for item in value):
            raise self.wrong(key, value, "a list of numbers")
        return value

    def wrong(self, key: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {key} is {str(value)[:80]!r}, expected {expected}")

    def _get(self, key: str, default: object) -> Any:
        value = self.values.get(key, default)
        if value is None:
            raise CheckpointError(f"{self.path}: the key {key} is missing")
        return value

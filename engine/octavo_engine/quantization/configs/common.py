"""What the configs share."""

from typing import Protocol

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.scheme import Matcher, Scheme

EVERYTHING = Matcher("all")


class QuantizationConfig(Protocol):
    def scheme(self) -> Scheme:
        """Raises CheckpointError naming the value at fault."""
        ...


def read_group_size(group_size: int) -> int | None:
    """-1 is the files' way to say one group for the whole row."""
    if group_size == -1:
        return None
    if group_size < 1:
        raise CheckpointError(f"group_size {group_size} is neither positive nor -1")
    return group_size


def check_pack_dtype(method: str, pack_dtype: str) -> None:
    if pack_dtype != "int32":
        raise CheckpointError(f"{method} pack_dtype {pack_dtype!r} is not supported, only int32")

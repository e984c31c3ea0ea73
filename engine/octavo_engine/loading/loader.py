"""Fills a model's slots from a source, after checking that they fit each other exactly.

Knows slots and sources; knows no layer and no file format.
"""

from collections.abc import Iterable

from octavo_engine.errors import CheckpointError
from octavo_engine.loading.slots import Slot
from octavo_engine.loading.source import TensorInfo, WeightSource
from octavo_engine.progress import Report, silent

# Buffers that old exporters saved; they follow from the config.
DERIVED_SUFFIXES = ("rotary_emb.inv_freq", "attn.masked_bias", "attention.bias")
NAMES_SHOWN = 5


def check_fit(
    slots: Iterable[Slot], infos: dict[str, TensorInfo], ignored: frozenset[str] = frozenset()
) -> None:
    """Raises CheckpointError naming file and tensor: missing, misshapen, mistyped or left over.

    `ignored` may be there or not (a tied head that was saved all the same).
    """
    wanted = {slot.name: slot for slot in slots}
    missing = [name for name in wanted if name not in infos]
    if missing:
        raise CheckpointError(f"the checkpoint lacks {_sample(missing)}")
    for name, slot in wanted.items():
        info = infos[name]
        if info.shape != slot.shape:
            raise CheckpointError(
                f"{info.file}: tensor {name!r} has shape {list(info.shape)}, "
                f"the config asks for {list(slot.shape)}"
            )
        if info.dtype not in slot.dtypes:
            raise CheckpointError(
                f"{info.file}: tensor {name!r} is {info.dtype}, "
                f"the config asks for {' or '.join(slot.dtypes)}"
            )
    left = [
        name
        for name in infos
        if name not in wanted and name not in ignored and not name.endswith(DERIVED_SUFFIXES)
    ]
    if left:
        files = sorted({infos[name].file for name in left})
        raise CheckpointError(f"{', '.join(files)}: this model has no place for {_sample(left)}")


def fill(slots: Iterable[Slot], source: WeightSource, report: Report = silent) -> None:
    """Copies every tensor into its slot; the fit has been checked."""
    by_name = {slot.name: slot for slot in slots}
    num_slots = len(by_name)
    for name, tensor in source.tensors():
        slot = by_name.pop(name, None)
        if slot is not None:
            slot.write(tensor)
            report("weights", 1 - len(by_name) / num_slots)
    if by_name:
        raise CheckpointError(f"the checkpoint lacks {_sample(list(by_name))}")


def _sample(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:NAMES_SHOWN])
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{'tensor' if len(names) == 1 else 'tensors'} {shown}{more}"

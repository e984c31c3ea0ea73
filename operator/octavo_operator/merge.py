"""Parts of Kubernetes objects: one laid over another, and where one differs from another.

Both read lists the way the API server does: by key where the items have one, whole otherwise.
Knows nothing of which objects these are.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from octavo_operator.kinds import Manifest

_LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "imagePullSecrets": ("name",),
    "ports": ("containerPort", "port"),
    "ownerReferences": ("uid",),
    "volumeClaimTemplates": ("metadata.name",),
}
"""Field name of a list -> the keys by which its items are told apart: the first that is there."""

_QUANTITY_FIELDS = frozenset({"limits", "requests", "sizeLimit"})
_SUFFIXES: Mapping[str, Decimal] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("MGTPE", start=2)},
    **{letter + "i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}


def overlay(base: Manifest, over: Mapping[str, Any]) -> Manifest:
    """A new manifest: `over` laid over `base`, None in `over` removing a field."""
    merged = dict(base)
    for field, value in over.items():
        if value is None:
            merged.pop(field, None)
        elif isinstance(value, Mapping):
            found = merged.get(field)
            merged[field] = overlay(found if isinstance(found, dict) else {}, value)
        elif isinstance(value, list) and field in _LIST_KEYS:
            merged[field] = _overlay_list(field, merged.get(field) or [], value)
        else:
            merged[field] = value
    return merged


def _overlay_list(field: str, base: Sequence[Manifest], over: Sequence[Manifest]) -> list[Manifest]:
    by_key = {_key(field, item): item for item in base}
    for item in over:
        key = _key(field, item)
        by_key[key] = overlay(by_key.get(key, {}), item)
    return list(by_key.values())


def first_difference(wanted: Any, found: Any, field: str = "") -> str | None:
    """Where `found` lacks or changes a part of `wanted`, as "path: wanted X, found Y"; or None.

    What `found` has beyond `wanted` belongs to others and is no difference.
    """
    if isinstance(wanted, Mapping):
        return _mapping_difference(wanted, found, field)
    if isinstance(wanted, list) and field in _LIST_KEYS and wanted:
        return _keyed_list_difference(wanted, found, field)
    if _equal(wanted, found, field):
        return None
    return f": wanted {wanted!r}, found {found!r}"


def _mapping_difference(wanted: Mapping[str, Any], found: Any, field: str) -> str | None:
    if found is None and not wanted:
        return None
    if not isinstance(found, Mapping):
        return f": wanted {wanted!r}, found {found!r}"
    for name, value in wanted.items():
        # Quantities sit one level below the field that tells they are some.
        inner = field if field in _QUANTITY_FIELDS else name
        difference = first_difference(value, found.get(name), inner)
        if difference is not None:
            return f".{name}{difference}"
    return None


def _keyed_list_difference(wanted: Sequence[Any], found: Any, field: str) -> str | None:
    by_key = {_key(field, item): item for item in found or []}
    for item in wanted:
        key = _key(field, item)
        if key not in by_key:
            return f"[{key}]: missing"
        difference = first_difference(item, by_key[key])
        if difference is not None:
            return f"[{key}]{difference}"
    return None


def _equal(wanted: Any, found: Any, field: str) -> bool:
    if found is None:
        return not wanted  # the API server leaves out "", 0, false and []
    if field in _QUANTITY_FIELDS:  # it also writes 1000m as 1
        return quantity(wanted) == quantity(found)
    return bool(wanted == found)


def _key(field: str, item: Mapping[str, Any]) -> Any:
    for key in _LIST_KEYS[field]:
        value: Any = item
        for step in key.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    raise ValueError(f"an item of {field} has none of {', '.join(_LIST_KEYS[field])}: {item!r}")


def quantity(text: str | int) -> Decimal:
    """The number that a Kubernetes quantity means; raises ValueError when it is none."""
    raw = str(text)
    suffix = raw.lstrip("+-0123456789.")
    try:
        if suffix[:1] in ("e", "E") and suffix[1:]:
            return Decimal(raw)
        return Decimal(raw[: len(raw) - len(suffix)]) * _SUFFIXES[suffix]
    except (ArithmeticError, KeyError) as error:
        raise ValueError(f"not a quantity: {text!r}") from error

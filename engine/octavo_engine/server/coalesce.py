"""Joins what several steps brought for a sequence, so that a slow reader gets few large pieces."""

from collections.abc import Sequence

import msgspec

from octavo_engine.messages import RequestDelta


def coalesce(deltas: Sequence[RequestDelta]) -> Sequence[RequestDelta]:
    """One delta for each sequence, in the order of their first ones."""
    if len(deltas) == 1:
        return deltas
    by_index: dict[int, list[RequestDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    return [parts[0] if len(parts) == 1 else _join(parts) for parts in by_index.values()]


def _join(parts: Sequence[RequestDelta]) -> RequestDelta:
    first, last = parts[0], parts[-1]
    logprobs = [entry for part in parts for entry in part.logprobs or ()]
    return msgspec.structs.replace(
        first,
        token_ids=[token_id for part in parts for token_id in part.token_ids],
        logprobs=logprobs or None,
        num_cached_tokens=max(part.num_cached_tokens for part in parts),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        error=last.error,
    )

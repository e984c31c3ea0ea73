"""What belongs to a service, and what to one before it with its name."""

import pytest

from octavo_operator.snapshot import Snapshot


def made(name, moment=None):
    metadata = {"name": name} | ({} if moment is None else {"creationTimestamp": moment})
    return {"metadata": metadata}


@pytest.mark.parametrize("field", ["pods", "replica_sets"])
def test_what_is_older_than_the_service_is_its_predecessors(field):
    objects = (
        made("old", "2025-12-31T23:59:59Z"),
        made("own", "2026-01-01T00:00:00Z"),
        made("unknown"),
    )
    seen = Snapshot(**{field: objects}).since("2026-01-01T00:00:00Z")

    assert [one["metadata"]["name"] for one in getattr(seen, field)] == ["own", "unknown"]

"""The status of an InferenceService, and what of it must be written. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from octavo_operator import children, conditions, readiness
from octavo_operator.facts import Facts
from octavo_operator.kinds import Manifest


def wanted(
    body: Mapping[str, Any], served_name: str | None, facts: Facts, now: datetime
) -> Manifest:
    """`served_name` None: the spec could not be read, so the name is not known."""
    metadata = body["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    status: Manifest = {
        "observedGeneration": facts.generation,
        "replicas": facts.rollout.replicas,
        "wantedReplicas": facts.wanted_replicas,
        "readyReplicas": facts.rollout.ready_replicas,
        "updatedReplicas": facts.rollout.updated_replicas,
        "labelSelector": children.label_selector(name),
        "url": children.url(namespace, name),
        "conditions": conditions.merged(
            body.get("status", {}).get("conditions", []),
            readiness.conditions(facts),
            facts.generation,
            now,
        ),
    }
    if served_name is not None:
        status["servedName"] = served_name
    if facts.fit is not None:
        status["fit"] = facts.fit
    return status


def merge_patch(old: Mapping[str, Any], new: Manifest) -> Manifest | None:
    """A JSON merge patch of the status that leads from old to new; None when they are equal."""
    patch = _difference(old, new)
    return {"status": patch} if patch else None


def _difference(old: Mapping[str, Any], new: Manifest) -> Manifest:
    """Objects are merged field by field, so what has gone from one must be told, too."""
    patch: Manifest = {field: None for field in old if field not in new}
    for field, value in new.items():
        before = old.get(field)
        if isinstance(before, dict) and isinstance(value, dict):
            if inner := _difference(before, value):
                patch[field] = inner
        elif before != value:
            patch[field] = value
    return patch

"""What one ServiceAccount asked of the API server, and whether it was let: its audit log, read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Call:
    group: str
    resource: str
    """With its subresource, as in a Role: `deployments/scale`."""
    verb: str
    namespace: str
    name: str
    is_allowed: bool

    @property
    def right(self) -> tuple[str, str, str]:
        """As a Role grants it: group, resource, verb."""
        return self.group, self.resource, self.verb


def calls_in_order(log: Path, namespace: str, account: str) -> list[Call]:
    """Of one ServiceAccount; what concerns no resource is left out."""
    return [_call(event, event["verb"]) for event in _whole(log, namespace, account)]


def calls(log: Path, namespace: str, account: str) -> set[Call]:
    """The same as a set. A server-side apply that made its object asked for the right to create,
    too.
    """
    found: set[Call] = set()
    for event in _whole(log, namespace, account):
        found.add(_call(event, event["verb"]))
        if event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == 201:
            found.add(_call(event, "create"))
    return found


def refused(log: Path, namespace: str, account: str) -> set[Call]:
    """What the account asked for without the right to it."""
    return {call for call in calls(log, namespace, account) if not call.is_allowed}


def _call(event: dict[str, Any], verb: str) -> Call:
    target = event["objectRef"]
    resource = target["resource"]
    if "subresource" in target:
        resource += f"/{target['subresource']}"
    return Call(
        group=target.get("apiGroup", ""),
        resource=resource,
        verb=verb,
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        is_allowed=event["annotations"]["authorization.k8s.io/decision"] == "allow",
    )


def _whole(log: Path, namespace: str, account: str) -> Iterator[dict[str, Any]]:
    """One event for each call: a watch is told of when it begins and again when it ends."""
    ids: set[str] = set()
    for event in _events(log, f"system:serviceaccount:{namespace}:{account}"):
        if "objectRef" in event and event["auditID"] not in ids:
            ids.add(event["auditID"])
            yield event


def _events(log: Path, user: str) -> Iterator[dict[str, Any]]:
    """Also of the files that the log was moved to when it had grown."""
    for path in sorted(log.parent.glob(f"{log.stem}*{log.suffix}")):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                # The last one may be half written.
                if f'"{user}"' in line and line.endswith("\n"):
                    yield json.loads(line)

"""The audit log as sets of calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster import audit

USER = "system:serviceaccount:team:operator"


def _line(verb: str, *, user: str = USER, code: int = 200, may: str = "allow") -> str:
    event: dict[str, Any] = {
        "auditID": f"{verb}-{user}-{code}",
        "verb": verb,
        "user": {"username": user},
        "objectRef": {"apiGroup": "apps", "resource": "deployments", "subresource": "scale"},
        "responseStatus": {"code": code},
        "annotations": {"authorization.k8s.io/decision": may},
    }
    return json.dumps(event) + "\n"


def _rights(log: Path) -> set[tuple[str, str, str]]:
    return {call.right for call in audit.calls(log, "team", "operator")}


def test_only_the_accounts_own_calls_count(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(_line("get") + _line("list", user=USER + "-2"))
    assert _rights(log) == {("apps", "deployments/scale", "get")}


def test_a_patch_that_made_its_object_asked_for_the_right_to_create(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(_line("patch", code=201))
    assert {verb for _, _, verb in _rights(log)} == {"patch", "create"}


def test_refused_calls_are_told_apart(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(_line("get") + _line("delete", may="forbid", code=403))
    assert {call.verb for call in audit.refused(log, "team", "operator")} == {"delete"}


def test_a_log_that_was_moved_is_read_and_half_a_line_is_not(tmp_path: Path) -> None:
    (tmp_path / "audit-2026-01-01.log").write_text(_line("watch"))
    log = tmp_path / "audit.log"
    log.write_text(_line("get") + _line("list")[:-30])
    assert {verb for _, _, verb in _rights(log)} == {"watch", "get"}

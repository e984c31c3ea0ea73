"""A right service, how a mistake is laid over it, and what the API server says of it.

Not a test: what the tests of wrong services share. Each of their tables has, for a mistake, the
change of the spec and a part of the sentence that refuses it.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RIGHT: dict[str, Any] = {
    "apiVersion": "serving.octavo.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat"},
    "spec": {"model": {"uri": "file:///models/chat"}},
}


def changed(part: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`change` laid over `part`, None removing; lists are taken as they are, mistakes included."""
    result = dict(part)
    for name, value in change.items():
        inner = changed(part.get(name, {}), value) if isinstance(value, dict) else value
        result[name] = inner
    return {name: value for name, value in result.items() if value is not None}


def refusals(
    kubectl: Any, folder: Path, wrong: Mapping[str, tuple[dict[str, Any], str]]
) -> dict[str, str]:
    """Case of the table -> what is said of it; all are applied by one call, as from a folder."""
    for case_idx, (change, _) in enumerate(wrong.values()):
        metadata = {"name": f"wrong-{case_idx}"}
        body = changed(RIGHT, {"metadata": metadata, "spec": change})
        (folder / f"{case_idx}.json").write_text(json.dumps(body))
    said = kubectl.tried("apply", "--dry-run=server", f"--filename={folder}").stderr
    cases = list(wrong)
    found = re.findall(r'"[^"]*/(\d+)\.json": (.*)', said)
    return {cases[int(case_idx)]: sentence for case_idx, sentence in found}


def refusal(kubectl: Any, body: dict[str, Any]) -> str:
    result = kubectl.tried("apply", "--filename=-", stdin=json.dumps(body))
    assert result.returncode != 0, "it was accepted"
    return str(result.stderr)

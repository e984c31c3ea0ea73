"""A right service, how a mistake is laid over it, and what the API server says of it.

Not a test: what the tests of wrong services share. Each of their tables has, for a mistake, the
change of the spec and a part of the sentence that refuses it.
"""

import json
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


def refusal(kubectl: Any, body: dict[str, Any]) -> str:
    result = kubectl.tried("apply", "--filename=-", stdin=json.dumps(body))
    assert result.returncode != 0, "it was accepted"
    return str(result.stderr)

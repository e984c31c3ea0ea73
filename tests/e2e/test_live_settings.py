"""API keys and a chat template with the real engine: who may ask, and what it makes of a chat."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import yaml
from tests.e2e import chat, walk
from tests.e2e.stage import SERVICE, Stage

pytestmark = pytest.mark.cluster

SECRET = "chat-keys"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""The prompt is the words alone."""


@pytest.fixture
def guarded(stage: Stage) -> Any:
    """The minimal example with keys and a template of its own, served."""
    stage.kubectl("create", "secret", "generic", SECRET, "--from-literal=api-keys=first")
    service = yaml.safe_load(walk.EXAMPLE.read_text(encoding="utf-8"))
    service["spec"]["auth"] = {"apiKeysSecretRef": {"name": SECRET}}
    service["spec"].setdefault("engine", {})["chatTemplate"] = TEMPLATE
    stage.kubectl("apply", "--filename=-", stdin=json.dumps(service))
    stage.wait_ready()
    yield stage
    stage.kubectl("delete", "secret", SECRET)


def test_keys_are_changed_under_a_replica_that_stays(guarded: Stage) -> None:
    with chat.endpoint(guarded) as url:
        assert _ask(url, None).status_code == 401
        answer = _ask(url, "first")
        # "Hello there" alone: the model's own template would write far more around it.
        assert answer.json()["usage"]["prompt_tokens"] == 2
        before = _what_runs(guarded)

        _replace_keys(guarded, "second")
        guarded.wait("the new key counts", lambda: _ask(url, "second").status_code == 200)

        assert _ask(url, "first").status_code == 401
        assert _what_runs(guarded) == before


def _replace_keys(stage: Stage, key: str) -> None:
    """And let the kubelet look at the pod now: by itself it does so within a minute or two."""
    change = {"stringData": {"api-keys": key}}
    stage.kubectl("patch", "secret", SECRET, f"--patch={json.dumps(change)}")
    (pod,) = stage.pods()
    stage.kubectl("annotate", "pod", pod["metadata"]["name"], f"octavo.test/keys={key}")


def _ask(url: str, key: str | None) -> httpx.Response:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    body = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 1}
    with httpx.Client(trust_env=False, timeout=60) as client:
        return client.post(
            f"{url}/chat/completions", headers=headers, json={**body, "model": "smollm2"}
        )


def _what_runs(stage: Stage) -> tuple[Any, ...]:
    (pod,) = stage.pods()
    (container,) = pod["status"]["containerStatuses"]
    service = stage.get(SERVICE)["metadata"]
    return pod["metadata"]["uid"], container["restartCount"], service["generation"]

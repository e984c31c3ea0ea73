"""An application developer's view: the `openai` client against the Service."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from openai import OpenAI
from tests.e2e.stage import Stage

QUESTION = "What is gravity?"


@dataclass(frozen=True)
class Answer:
    text: str
    num_tokens: int
    ttft_s: float
    total_s: float

    @property
    def tokens_per_s(self) -> float:
        """Of the stream after its first token."""
        return (self.num_tokens - 1) / max(self.total_s - self.ttft_s, 1e-9)


@contextmanager
def endpoint(stage: Stage) -> Iterator[str]:
    """The base URL of the service from this machine: its address, or a port forwarded to it."""
    service = stage.get("service", "smollm2")["spec"]
    port = service["ports"][0]["port"]
    if stage.cluster.reaches_services:
        yield f"http://{service['clusterIP']}:{port}/v1"
        return
    with _forwarded(stage, port) as local_port:
        yield f"http://127.0.0.1:{local_port}/v1"


def ask(base_url: str, question: str = QUESTION, *, max_tokens: int = 40) -> Answer:
    """A greedy chat, streamed; raises what the client raises."""
    with _client(base_url) as client:
        started = time.monotonic()
        first_s: float | None = None
        text, num_tokens = "", 0
        with client.chat.completions.create(
            **_chat(client, question, max_tokens),
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    first_s = first_s or time.monotonic() - started
                    text += chunk.choices[0].delta.content
                if chunk.usage is not None:
                    num_tokens = chunk.usage.completion_tokens
    return Answer(text, num_tokens, first_s or 0.0, time.monotonic() - started)


def ask_plainly(base_url: str, question: str = QUESTION, *, max_tokens: int = 40) -> str:
    """The same without streaming."""
    with _client(base_url) as client:
        answer = client.chat.completions.create(**_chat(client, question, max_tokens))
    return answer.choices[0].message.content or ""


def _client(base_url: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=120)


def _chat(client: OpenAI, question: str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }


@contextmanager
def _forwarded(stage: Stage, port: int) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        local_port = int(probe.getsockname()[1])
    config = f"--kubeconfig={stage.cluster.kubeconfig}"
    words = ("port-forward", f"--namespace={stage.namespace}", "service/smollm2")
    argv = [str(stage.cluster.kubectl), config, *words, f"{local_port}:{port}"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert process.stdout is not None
        said = process.stdout.readline().decode()
        if not said.startswith("Forwarding"):
            raise RuntimeError(f"{' '.join(argv)}: {said}")
        yield local_port
    finally:
        process.terminate()
        process.wait()
        process.stdout.close() if process.stdout else None

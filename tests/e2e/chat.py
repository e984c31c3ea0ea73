"""An application developer's view: the `openai` client against the Service."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from openai import OpenAI
from tests.e2e.stage import Stage

QUESTION = "What is the capital of France?"


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


def ask(base_url: str, question: str = QUESTION, *, max_tokens: int = 48) -> Answer:
    """A greedy chat, streamed; raises what the client raises."""
    client = OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=120)
    with client:
        model = client.models.list().data[0].id
        started = time.monotonic()
        first: float | None = None
        text, num_tokens = "", 0
        with client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    first = first or time.monotonic() - started
                    text += chunk.choices[0].delta.content
                if chunk.usage is not None:
                    num_tokens = chunk.usage.completion_tokens
    return Answer(text, num_tokens, first or 0.0, time.monotonic() - started)


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

"""Every status that services were given, in their order: what lasts a moment is seen, too."""

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple


class Seen(NamedTuple):
    service: str
    condition: str
    status: str
    reason: str
    message: str


class StatusWatch:
    """`kubectl get osvc --watch` in a process of its own, into a file."""

    def __init__(self, kubectl: Any, folder: Path) -> None:
        self._output = folder / "watched.json"
        words = ("get", "osvc", "--watch", "--output=json")
        command = [kubectl.program, f"--kubeconfig={kubectl.kubeconfig}", f"-n{kubectl.namespace}"]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen([*command, *words], stdout=output)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)

    def seen(self) -> list[Seen]:
        return [
            Seen(
                body["metadata"]["name"],
                condition["type"],
                condition["status"],
                condition["reason"],
                condition["message"],
            )
            for body in self._bodies()
            for condition in body.get("status", {}).get("conditions", [])
        ]

    def _bodies(self) -> list[dict[str, Any]]:
        """kubectl writes one object after the other; the last may not be whole yet."""
        text, decoder = self._output.read_text(), json.JSONDecoder()
        bodies: list[dict[str, Any]] = []
        end = 0
        while (begin := text.find("{", end)) >= 0:
            try:
                body, end = decoder.raw_decode(text, begin)
            except json.JSONDecodeError:
                break
            bodies.append(body)
        return bodies

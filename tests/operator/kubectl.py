"""kubectl on the test cluster, and namespaces for it. Not a test: what on-cluster tests share."""

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_operator.kinds import Manifest


@dataclass(frozen=True)
class Kubectl:
    """kubectl on the test cluster, in one namespace."""

    program: Path
    kubeconfig: Path
    namespace: str

    def __call__(self, *words: str, stdin: str | None = None) -> str:
        """Its output; raises CalledProcessError with what it said."""
        done = self.tried(*words, stdin=stdin)
        try:
            done.check_returncode()
        except subprocess.CalledProcessError as error:
            error.add_note(done.stderr)
            raise
        return done.stdout

    def tried(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [self.program, f"--kubeconfig={self.kubeconfig}", f"-n{self.namespace}", *words]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)

    def apply(self, *manifests: Manifest) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self("apply", "--filename=-", stdin=json.dumps(items))

    def get(self, *words: str) -> Manifest:
        """One object, or a list as {"items": [...]}."""
        found: Manifest = json.loads(self("get", *words, "--output=json"))
        return found

    def wait_until(
        self, what: str | Callable[[], str], holds: Callable[[], object], timeout_s: float = 60
    ) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline_s:
                seen = self("get", "osvc,deployments,services,pods", "--output=yaml")
                told = what if isinstance(what, str) else what()
                raise AssertionError(f"not so within {timeout_s} s: {told}\n{seen}")
            time.sleep(0.1)


@contextmanager
def namespace_of_its_own(api_server: Any) -> Iterator[Kubectl]:
    made = Kubectl(api_server.kubectl, api_server.kubeconfig, f"test-{uuid.uuid4().hex[:8]}")
    made("create", "namespace", made.namespace)
    yield made
    made("delete", "namespace", made.namespace, "--wait=false")

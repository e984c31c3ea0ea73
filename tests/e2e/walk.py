"""From a YAML file to tokens and back, step by step: `make demo` and the tests walk the same way.

A step acts, as a user would, and then settles: it returns once the cluster has carried it out and
raises when it has not. Between the two a test may break things.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.state import REPOSITORY
from tests.e2e import chat
from tests.e2e.stage import SERVICE, SERVICE_LABEL, Manifest, NotSo, Stage, ready_now

EXAMPLE = REPOSITORY / "crds" / "examples" / "01-minimal.yaml"
CHILDREN = "deployments,replicasets,pods,services,serviceaccounts,endpointslices,configmaps"


@dataclass(frozen=True)
class Step:
    title: str
    act: Callable[[Stage], object]
    settle: Callable[[Stage], str]
    """Returns what there is to tell."""


def _nothing(stage: Stage) -> None:
    pass


def _apply(stage: Stage) -> None:
    stage.kubectl("apply", "--filename", EXAMPLE)


def _is_served(stage: Stage) -> str:
    stage.wait_ready()
    return f"{stage.get(SERVICE)['status']['url']} inside the cluster"


def _answers(stage: Stage) -> str:
    with chat.endpoint(stage) as url:
        answer = chat.ask(url)
        plain = chat.ask_plainly(url)
    if not answer.text or answer.text != plain:
        raise NotSo(f"{chat.QUESTION!r} streamed is {answer.text!r}, not streamed {plain!r}")
    return (
        f"{chat.QUESTION} {answer.text.strip()} ...\n"
        f"first token after {answer.ttft_s * 1000:.0f} ms, then {answer.tokens_per_s:.0f} tokens/s"
    )


def _is_listed(stage: Stage) -> str:
    table = stage.kubectl("get", "osvc")
    row = table.splitlines()[1]
    if not row.startswith("smollm2 ") or " True " not in row:
        raise NotSo(f"kubectl get osvc prints\n{table}")
    return "\n" + table.rstrip()


def _change_spec(stage: Stage) -> None:
    change = {"spec": {"engine": {"maxNumSeqs": 24}}}
    stage.kubectl("patch", SERVICE, "--type=merge", f"--patch={json.dumps(change)}")


def _runs_the_change(stage: Stage) -> str:
    stage.wait_ready()
    stage.wait("the old pod gone", lambda: len(stage.pods()) == 1)
    arguments = stage.pods()[0]["spec"]["containers"][0]["args"]
    if "--max-num-seqs=24" not in arguments:
        raise NotSo(f"the engine was started with {arguments}")
    return f"{stage.pods()[0]['metadata']['name']} runs it; {_answers(stage)}"


def _scale(stage: Stage) -> None:
    stage.kubectl("scale", SERVICE, "--replicas=2")


def _has_two_replicas(stage: Stage) -> str:
    stage.wait("2 replicas ready", lambda: _ready_replicas(stage) == 2)
    return ", ".join(pod["metadata"]["name"] for pod in stage.pods())


def _kill_pod(stage: Stage) -> None:
    victim = stage.pods()[0]["metadata"]["name"]
    stage.kubectl("delete", "pod", victim, "--grace-period=0", "--force", "--wait=false")
    stage.wait(
        f"{victim} gone",
        lambda: victim not in [pod["metadata"]["name"] for pod in stage.pods()],
    )


def _has_two_replicas_again(stage: Stage) -> str:
    stage.wait("two pods", lambda: len([p for p in stage.pods() if _is_ready(p)]) == 2)
    told = _has_two_replicas(stage)
    youngest = max(stage.pods(), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    return f"{youngest['metadata']['name']} is new; {told}"


def _delete(stage: Stage) -> None:
    stage.kubectl("delete", SERVICE, "--wait=false")


def _nothing_is_left(stage: Stage) -> str:
    stage.wait("the service gone", lambda: not stage.get("osvc")["items"])
    stage.wait("its children gone", lambda: not children(stage))
    # The operator must not bring back what it saw last.
    time.sleep(2)
    if left := children(stage):
        raise NotSo(f"came back after the deletion: {left}")
    return f"no {CHILDREN.replace(',', ', ')}"


def children(stage: Stage) -> list[str]:
    items = stage.get(CHILDREN, f"--selector={SERVICE_LABEL}=smollm2")["items"]
    return [f"{item['kind']}/{item['metadata']['name']}" for item in items]


def _ready_replicas(stage: Stage) -> int:
    service = stage.get(SERVICE)
    status: Manifest = service.get("status", {})
    return int(status.get("readyReplicas", 0)) if ready_now(service) else 0


def _is_ready(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


APPLY = Step("kubectl apply a service, until Ready", _apply, _is_served)
CHAT = Step("chat through the Service, streamed", _nothing, _answers)
LIST = Step("kubectl get osvc", _nothing, _is_listed)
CHANGE = Step("a change of spec rolls out", _change_spec, _runs_the_change)
SCALE = Step("kubectl scale to 2", _scale, _has_two_replicas)
KILL = Step("a pod is killed and replaced", _kill_pod, _has_two_replicas_again)
DELETE = Step("delete leaves nothing", _delete, _nothing_is_left)

DEMO_STEPS = (APPLY, CHAT, LIST, CHANGE, SCALE, KILL)
ALL_STEPS = (*DEMO_STEPS, DELETE)

"""From another release to this checkout, over services that run: no pod is touched."""

import json
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operator.cluster_operator import (
    NOWHERE,
    REPOSITORY,
    OperatorProcess,
    answer,
    has_reason,
    pods,
    roles,
    service,
)

from octavo_operator.kinds import TEMPLATE_ANNOTATION

pytestmark = pytest.mark.cluster

ENGINE = {"image": "octavo-engine:1", "imagePullPolicy": "IfNotPresent"}
CRD = Path("crds", "inferenceservices.yaml")


def install_crd(kubectl, checkout):
    kubectl("apply", "--server-side", "--force-conflicts", f"--filename={checkout / CRD}")


@pytest.fixture(scope="module")
def previous(tmp_path_factory):
    """The release before this one; see previous/README.md."""
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(Path(__file__).parent / "previous" / "release.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def previous_crd(kubectl, previous):
    install_crd(kubectl, previous)
    yield
    install_crd(kubectl, REPOSITORY)


@dataclass(frozen=True)
class Releases:
    """Operators of one release after another for the test's namespace."""

    cluster: Any
    kubectl: Any
    folder: Path

    def run(self, identity, *, release=REPOSITORY):
        install_crd(self.kubectl, release)
        namespace = self.kubectl.namespace
        self.kubectl.apply(*roles(self.cluster, namespace, checkout=release))
        process = OperatorProcess(self.cluster, self.kubectl, self.folder, identity)
        return process.start(release=release, engine=ENGINE)


@pytest.fixture
def upgraded(api_server, kubectl, tmp_path):
    """Runs a release until told to go on with this checkout."""
    releases = Releases(api_server, kubectl, tmp_path)
    running = []

    def run(identity, **given):
        for process in running:
            process.stop()
        running.append(releases.run(identity, **given))
        return running[-1]

    yield run
    for process in running:
        process.kill()


def examples(release):
    """As its users were shown them, with a node that does not exist."""
    for path in sorted((release / "crds" / "examples").glob("*.yaml")):
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        found["spec"]["nodeSelector"] = NOWHERE
        yield found


def make_ready(kubectl, replicas=2):
    """On no node: the pods of one that does not exist are removed after a while."""
    kubectl.apply(service(replicas=replicas, engine={"maxNumSeqs": 8}))
    wait_for_number(kubectl, replicas)
    for pod in pods(kubectl):
        answer(kubectl, pod)
    kubectl.wait_until("ready", has_reason(kubectl, "AllReplicasReady"))


def wait_for_number(kubectl, replicas):
    kubectl.wait_until(f"{replicas} pods", lambda: len(pods(kubectl)) == replicas)


def identities(kubectl):
    return sorted(pod["metadata"]["uid"] for pod in pods(kubectl))


def templates(kubectl):
    return {
        item["metadata"]["name"]: item["spec"]["template"]
        for item in kubectl.get("deployments,statefulsets")["items"]
    }


def available_since(kubectl):
    conditions = kubectl.get("osvc", "chat")["status"]["conditions"]
    (available,) = [one for one in conditions if one["type"] == "Available"]
    assert available["status"] == "True"
    return available["lastTransitionTime"]


def num_templates(kubectl):
    return len(kubectl.get("replicasets", "--selector=serving.octavo.dev/service=chat")["items"])


def wait_until_taken_over(kubectl, operator):
    def records():
        items = kubectl.get("deployments,statefulsets")["items"]
        return [TEMPLATE_ANNOTATION in item["metadata"]["annotations"] for item in items]

    kubectl.wait_until("each looked at", lambda: all(records()))
    count = "octavo_operator_reconcile_duration_seconds_count"
    kubectl.wait_until("it has begun", lambda: sum(operator.samples(count).values()) > 0)
    kubectl.wait_until("at rest", lambda: operator.samples("octavo_operator_queue_length")[()] == 0)


@pytest.fixture
def next_release(tmp_path):
    """This checkout, but its pods are asked less often whether they live."""
    folder = tmp_path / "next"
    for part in ("operator", "crds", "charts"):
        shutil.copytree(REPOSITORY / part, folder / part)
    file = folder / "operator" / "octavo_operator" / "pod_template.py"
    text = file.read_text(encoding="utf-8")
    assert text.count('"periodSeconds": 10') == 1
    file.write_text(text.replace('"periodSeconds": 10', '"periodSeconds": 11'), encoding="utf-8")
    return folder


def seconds(template):
    (container,) = template["spec"]["containers"]
    return container["livenessProbe"]["periodSeconds"]


def test_an_upgrade_restarts_no_pod(previous_crd, previous, next_release, upgraded, kubectl):
    """From the release before to this one, and on to one that makes other pods."""
    before = upgraded("previous", release=previous)
    assert before.samples("octavo_operator_watch_age_seconds") == {}, "it is the old code"
    shown = list(examples(previous))
    kubectl.apply(*shown)
    make_ready(kubectl)
    kubectl.wait_until("all made", lambda: len(templates(kubectl)) == 1 + len(shown))
    running, made = identities(kubectl), templates(kubectl)
    since = available_since(kubectl)

    def nothing_is_touched():
        assert templates(kubectl) == made
        assert set(running) <= set(identities(kubectl))
        assert num_templates(kubectl) == 1
        assert available_since(kubectl) == since

    wait_until_taken_over(kubectl, upgraded("this"))
    nothing_is_touched()

    following = upgraded("next", release=next_release)
    kubectl("scale", "osvc/chat", "--replicas=3")
    wait_for_number(kubectl, 3)
    wait_until_taken_over(kubectl, following)
    nothing_is_touched()

    patch = json.dumps({"spec": {"engine": {"maxNumSeqs": 9}}})
    kubectl("patch", "osvc", "chat", "--type=merge", f"--patch={patch}")
    kubectl.wait_until("its own change makes new pods", lambda: num_templates(kubectl) == 2)
    assert (seconds(made["chat"]), seconds(templates(kubectl)["chat"])) == (10, 11)
    assert set(running) <= set(identities(kubectl)), "the old ones serve until the new one answers"

"""Settings that are files: a pod reads what it was made with, and what nobody reads is removed."""

import json

import pytest
from tests.operator.cluster_operator import answer, name_of, pods, service

pytestmark = pytest.mark.cluster


def config_maps(kubectl):
    """Name -> the chat template in it."""
    selector = "--selector=serving.octavo.dev/service=chat"
    items = kubectl.get("configmaps", selector)["items"]
    return {item["metadata"]["name"]: item["data"]["chat-template.jinja"] for item in items}


def mounted(pod):
    (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "settings"]
    return volume["configMap"]["name"]


def set_template(kubectl, text):
    patch = json.dumps({"spec": {"engine": {"chatTemplate": text}}})
    kubectl("patch", "osvc", "chat", "--type=merge", f"--patch={patch}")


def wait_for_number(kubectl, number):
    """Of pods. They are on no node, so that one which is deleted is gone at once."""
    kubectl.wait_until(f"{number} pods", lambda: len(pods(kubectl)) == number)
    return pods(kubectl)


def test_a_rollout_leaves_the_old_pods_their_text_until_they_have_gone(shared_operator, kubectl):
    kubectl.apply(service(engine={"chatTemplate": "old"}))
    (old,) = wait_for_number(kubectl, 1)
    answer(kubectl, old)

    set_template(kubectl, "new")
    (new,) = [pod for pod in wait_for_number(kubectl, 2) if name_of(pod) != name_of(old)]
    texts = config_maps(kubectl)
    assert (texts[mounted(old)], texts[mounted(new)]) == ("old", "new")

    answer(kubectl, new)
    kubectl.wait_until("the old one is gone", lambda: list(config_maps(kubectl)) == [mounted(new)])
    assert [name_of(pod) for pod in pods(kubectl)] == [name_of(new)]

    set_template(kubectl, None)
    (last,) = [pod for pod in wait_for_number(kubectl, 2) if name_of(pod) != name_of(new)]
    assert list(config_maps(kubectl)) == [mounted(new)]
    answer(kubectl, last)
    kubectl.wait_until("none is left", lambda: not config_maps(kubectl))


def test_one_that_somebody_removed_comes_back(shared_operator, kubectl):
    kubectl.apply(service(engine={"chatTemplate": "text"}))
    (pod,) = wait_for_number(kubectl, 1)
    name = mounted(pod)
    uid = kubectl.get("configmap", name)["metadata"]["uid"]

    kubectl("delete", "configmap", name, "--wait=false")

    def is_new():
        found = kubectl.tried("get", "configmap", name, "--output=jsonpath={.metadata.uid}").stdout
        return found not in ("", uid)

    kubectl.wait_until("a new one", is_new)
    assert config_maps(kubectl) == {name: "text"}

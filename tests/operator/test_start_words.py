"""What a runtime says of a container that it cannot start."""

import pytest

from octavo_operator import pod_causes, start_words

ID = "ea366c8037d27ff6fd19c747d5c7094bb3b82db3e5e658a7492e28a4004ca2cb"
OLD_RUNTIME = (
    f'failed to generate container "{ID}" spec: failed to generate spec: '
    'failed to mkdir "": mkdir : no such file or directory'
)
WITH_IMAGE = {"spec": {"volumes": [{"name": "model", "image": {"reference": "r/m:1"}}]}}


def test_a_runtime_that_cannot_mount_images_is_explained():
    sentence = start_words.settled(WITH_IMAGE, OLD_RUNTIME)

    assert sentence.startswith("the node's runtime cannot mount an image as a volume, as oci://")
    assert "containerd can from 2.1 on" in sentence


def test_the_same_words_of_another_pod_stay_the_runtimes_own():
    sentence = start_words.settled({"spec": {}}, OLD_RUNTIME)

    assert sentence.startswith("failed to generate container spec: failed to generate spec: ")


@pytest.mark.parametrize("number", [ID, ID[::-1]])
def test_a_cause_is_the_same_at_every_try(number):
    text = f'failed to create task for container "{number}": no such device'
    waiting = {"reason": "CreateContainerError", "message": text}
    status = {"containerStatuses": [{"name": "engine", "state": {"waiting": waiting}}]}
    cause = pod_causes.cause({"metadata": {"name": "chat-1"}, "status": status})

    assert cause is not None
    assert cause.sentence == (
        "cannot start container engine: failed to create task for container: no such device"
    )

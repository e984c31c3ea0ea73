"""The init container that fetches, and the cache that it fetches into."""

import pytest

from octavo_operator import api, children
from octavo_operator.config import EngineDefaults
from octavo_operator.pod_template import pod_template

DEFAULTS = EngineDefaults(image="octavo-engine:1")
HUB = "hf://org/name"


@pytest.fixture
def pod(service_body):
    def of(model, defaults=DEFAULTS, **spec):
        service = api.parse(service_body({"model": model, **spec}))
        return pod_template(service, {}, defaults)["spec"]

    return of


def fetch(spec):
    (container,) = spec["initContainers"]
    assert container["name"] == "fetch"
    return container


def mounts(container):
    return {mount["mountPath"]: mount for mount in container["volumeMounts"]}


def volume(spec, name):
    (found,) = [volume for volume in spec["volumes"] if volume["name"] == name]
    return found


def test_it_fetches_to_where_the_engine_serves(pod):
    spec = pod({"uri": HUB})
    (engine,) = spec["containers"]
    folder = engine["args"][1]

    assert fetch(spec)["args"][:3] == ["fetch", HUB, f"--to={folder}"]
    assert mounts(fetch(spec))["/model"]["readOnly"] is False
    assert mounts(engine)["/model"]["readOnly"] is True


def test_it_is_the_engines_image_under_the_same_lock(pod):
    spec = pod(
        {"uri": HUB}, image="mine:2", engine={"env": [{"name": "HF_ENDPOINT", "value": "m"}]}
    )
    (engine,) = spec["containers"]

    for field in ("image", "command", "env", "securityContext", "terminationMessagePath"):
        assert fetch(spec)[field] == engine[field]


def test_it_holds_no_accelerator(pod):
    spec = pod({"uri": HUB}, resources={"limits": {"memory": "8Gi"}})

    assert fetch(spec)["resources"] == {"limits": {"memory": "8Gi"}}


@pytest.mark.parametrize("uri", ["file:///models/a", "pvc://claim/a", "oci://image:1"])
def test_what_is_there_is_not_fetched(pod, uri):
    assert "initContainers" not in pod({"uri": uri})


def test_it_is_told_what_decides_about_memory(pod):
    engine = {"maxModelLen": 512, "tensorParallelSize": 2, "maxNumSeqs": 8}
    args = fetch(pod({"uri": HUB}, engine=engine, accelerator={"memoryGiB": 79.5}))["args"]

    assert {"--max-model-len=512", "--tensor-parallel-size=2", "--memory-gib=79.5"} <= set(args)
    assert "--max-num-seqs=8" not in args


def test_on_the_cpu_the_limit_is_the_memory(pod):
    cpu = {"accelerator": {"resourceName": "none"}, "resources": {"limits": {"memory": "3072Mi"}}}

    assert {"--memory-gib=3", "--device=cpu"} <= set(fetch(pod({"uri": HUB}, **cpu))["args"])


def test_a_secret_is_mounted_for_the_fetch_alone(pod):
    spec = pod({"uri": HUB, "secretRef": {"name": "hub"}})
    (engine,) = spec["containers"]

    assert volume(spec, "model-secret")["secret"] == {"secretName": "hub"}
    assert mounts(fetch(spec))["/etc/octavo/model-secret"]["readOnly"] is True
    assert "--secret-dir=/etc/octavo/model-secret" in fetch(spec)["args"]
    assert "/etc/octavo/model-secret" not in mounts(engine)


def test_the_secret_of_an_image_pulls_it(pod):
    spec = pod({"uri": "oci://image:1", "secretRef": {"name": "registry"}})

    assert spec["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize(
    ("cache", "wanted"),
    [
        (None, {"emptyDir": {}}),
        ({"emptyDir": {"sizeLimit": "9Gi"}}, {"emptyDir": {"sizeLimit": "9Gi"}}),
        ({"claimName": "mine"}, {"persistentVolumeClaim": {"claimName": "mine"}}),
        ({"newClaim": {"size": "9Gi"}}, {"persistentVolumeClaim": {"claimName": "chat"}}),
        ({"hostPath": "/cache"}, {"hostPath": {"path": "/cache", "type": "Directory"}}),
    ],
)
def test_each_kind_of_cache_is_a_volume(pod, cache, wanted):
    model = {"uri": HUB} if cache is None else {"uri": HUB, "cache": cache}

    assert volume(pod(model), "model") == {"name": "model", **wanted}


def test_a_new_claim_is_a_child(service_body):
    claim = {"size": "20Gi", "storageClassName": "fast", "accessMode": "ReadWriteMany"}
    service = api.parse(service_body({"model": {"uri": HUB, "cache": {"newClaim": claim}}}))
    manifests = children.wanted(service, 1, DEFAULTS, "octavo-system")
    (made,) = [found for found in manifests if found["kind"] == "PersistentVolumeClaim"]

    assert made["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "20Gi"}},
        "storageClassName": "fast",
    }
    assert [kind.name for kind, _ in children.names(service)] == [m["kind"] for m in manifests]


def test_without_a_new_claim_there_is_none(service_body):
    service = api.parse(service_body())
    manifests = children.wanted(service, 1, DEFAULTS, "octavo-system")

    assert [kind.name for kind, _ in children.names(service)] == [m["kind"] for m in manifests]
    assert "PersistentVolumeClaim" not in {found["kind"] for found in manifests}


def test_a_refresh_changes_the_pod(pod):
    assert pod({"uri": HUB, "refresh": "2"}) != pod({"uri": HUB})


def test_what_an_overlay_gives_the_engine_it_gives_the_fetch(pod):
    engine = {
        "name": "engine",
        "command": ["other"],
        "env": [{"name": "HTTPS_PROXY", "value": "proxy"}],
        "volumeMounts": [{"name": "ca", "mountPath": "/etc/ssl"}],
    }
    defaults = EngineDefaults(image="e:1", pod_overlay={"spec": {"containers": [engine]}})
    own = {"spec": {"containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}]}]}}
    container = fetch(pod({"uri": HUB}, defaults, podTemplate=own))

    assert {"name": "HTTPS_PROXY", "value": "proxy"} in container["env"]
    assert {"name": "A", "value": "1"} in container["env"]
    assert "/etc/ssl" in mounts(container)
    assert container["command"] == ["octavo"], "its work is its own"

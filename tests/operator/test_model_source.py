"""From a model's uri to a volume, a mount and a path to serve."""

import pytest

from octavo_operator import model_source
from octavo_operator.errors import InvalidService
from octavo_operator.reasons import Reason

FOLDER = {"hostPath": {"path": "/models/a", "type": "Directory"}}


@pytest.mark.parametrize(
    ("uri", "volume", "mount_path", "serve_path"),
    [
        ("file:///models/a", FOLDER, "/model", "/model"),
        ("file:///models/a/", FOLDER, "/model", "/model"),
        (
            "file:///models/a.gguf",
            {"hostPath": {"path": "/models/a.gguf", "type": "File"}},
            "/model/a.gguf",
            "/model/a.gguf",
        ),
        (
            "pvc://claim",
            {"persistentVolumeClaim": {"claimName": "claim", "readOnly": True}},
            "/model",
            "/model",
        ),
        (
            "pvc://claim/deep/a.gguf",
            {"persistentVolumeClaim": {"claimName": "claim", "readOnly": True}},
            "/model",
            "/model/deep/a.gguf",
        ),
        (
            "oci://registry.example/m:1#deep/a.gguf",
            {"image": {"reference": "registry.example/m:1"}},
            "/model",
            "/model/deep/a.gguf",
        ),
        (
            "oci://registry.example:5000/m@sha256:abc",
            {"image": {"reference": "registry.example:5000/m@sha256:abc"}},
            "/model",
            "/model",
        ),
    ],
)
def test_what_a_uri_becomes(uri, volume, mount_path, serve_path):
    source = model_source.parse(uri)

    assert source.volume == {"name": "model", **volume}
    assert source.mount == {"name": "model", "mountPath": mount_path, "readOnly": True}
    assert source.serve_path == serve_path


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("ftp://org/name", "must begin with one of hf://, modelscope://, s3://"),
        ("/models/a", "must begin with one of hf://"),
        ("hf://name", "must name a model of its scheme"),
        ("hf://org/name/folder", "must name a model of its scheme"),
        ("s3://BUCKET/a", "must name a model of its scheme"),
        ("https://user@host/a", "must name a model of its scheme"),
        ("oci://", "must name an image"),
        ("file://host/models", "must hold an absolute path"),
        ("file:///", "must hold an absolute path"),
        ("file:///models/../etc", r"must hold no '\.\.' segment"),
        ("pvc://Claim/a", "must name a claim"),
        ("pvc:///a", "must name a claim"),
        ("pvc://claim/../a", r"must hold no '\.\.' segment"),
    ],
)
def test_what_is_refused(uri, sentence):
    with pytest.raises(InvalidService, match=sentence) as caught:
        model_source.parse(uri)

    assert caught.value.reason is Reason.INVALID_MODEL_URI
    assert repr(uri) in caught.value.message


@pytest.mark.parametrize(
    ("uri", "folder", "file"),
    [
        ("hf://org/name@v1.0", "org-name-v1.0", ""),
        ("modelscope://org/name", "org-name", ""),
        ("hf://org/name/q4.gguf", "org-name-q4.gguf", "/q4.gguf"),
        ("s3://bucket/deep/name/", "bucket-deep-name", ""),
        ("gs://bucket", "bucket", ""),
        ("https://host.example:8443/m/a.gguf", "host.example-8443-m-a.gguf", "/a.gguf"),
        (f"s3://bucket/{'long' * 30}", "long" * 10, ""),
    ],
)
def test_what_is_fetched_has_a_folder_of_its_own_in_the_cache(uri, folder, file):
    source = model_source.parse(uri, {"emptyDir": {"sizeLimit": "1Gi"}})

    assert source.volume == {"name": "model", "emptyDir": {"sizeLimit": "1Gi"}}
    assert source.mount == {"name": "model", "mountPath": "/model", "readOnly": True}
    assert source.folder.rpartition("-")[0] == f"/model/{folder}"
    assert source.serve_path == source.folder + file


def test_other_files_lie_in_another_folder():
    folders = {
        model_source.parse(uri, refresh=refresh).folder
        for uri in ("hf://org/name", "hf://org/name@v1", "s3://org/name")
        for refresh in ("", "again")
    }

    assert len(folders) == 6

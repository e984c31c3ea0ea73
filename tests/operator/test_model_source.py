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
        ("hf://org/name", "must begin with file:// or pvc://"),
        ("/models/a", "must begin with file:// or pvc://"),
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

"""The keys of a source, each in a file of the mounted Secret."""

import pytest
from tests.engine.fetch.served_model import FILES, content

from octavo_engine.fetch.errors import DownloadFailed, SecretMissing


@pytest.fixture
def secret(tmp_path):
    folder = tmp_path / "secret"
    folder.mkdir()

    def hold(**entries):
        for name, value in entries.items():
            (folder / name).write_text(value + "\n")
        return folder

    return hold


@pytest.mark.parametrize(
    ("uri", "entries"),
    [
        ("hf://org/name", {"HF_TOKEN": "t0ken"}),
        ("modelscope://org/name", {"MODELSCOPE_API_TOKEN": "t0ken"}),
        ("http://{host}/org/name", {"HTTP_TOKEN": "t0ken"}),
        ("http://{host}/org/name", {"HTTP_USERNAME": "u", "HTTP_PASSWORD": "p"}),
        ("s3://org/name", {"AWS_ACCESS_KEY_ID": "t0ken", "AWS_SECRET_ACCESS_KEY": "s"}),
    ],
)
def test_the_key_of_the_secret_opens(bring, server, secret, cache, uri, entries):
    server.faults.token = "dTpw" if "HTTP_USERNAME" in entries else "t0ken"

    with pytest.raises(DownloadFailed, match="secretRef"):
        bring(uri)
    bring(uri, secret(**entries))

    assert content(cache / "model") == FILES


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("hf://org/name", "lacks HF_TOKEN; it holds other"),
        ("modelscope://org/name", "lacks MODELSCOPE_API_TOKEN; it holds other"),
        ("s3://org/name", "lacks AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; it holds other"),
        ("gs://org/name", "lacks GOOGLE_SERVICE_ACCOUNT_KEY; it holds other"),
        ("http://{host}/org/name", "lacks HTTP_TOKEN, or HTTP_USERNAME and HTTP_PASSWORD"),
    ],
)
def test_a_secret_without_the_key_is_told(bring, secret, uri, sentence):
    with pytest.raises(SecretMissing, match=sentence):
        bring(uri, secret(other="x"))

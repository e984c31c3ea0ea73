"""From each kind of source into a folder: what serving needs, pinned and with its hashes."""

import hashlib

import pytest
from tests.engine.fake_model_server import COMMIT
from tests.engine.fetch.served_model import BIG, FILES, content

from octavo_engine.fetch import manifest


@pytest.mark.parametrize(
    "uri",
    [
        "hf://org/name",
        "hf://org/name@v1",
        "modelscope://org/name",
        "s3://org/name",
        "gs://org/name/",
        "http://{host}/org/name",
    ],
)
def test_what_serving_needs_comes_and_nothing_else(bring, cache, uri):
    fetched = bring(uri)

    assert content(cache / "model") == FILES
    assert not fetched.was_there
    assert fetched.manifest.size_bytes == sum(map(len, FILES.values()))


def test_a_branch_is_pinned_to_the_commit_it_meant(bring, server):
    assert bring("hf://org/name").manifest.revision == COMMIT
    files = [path for path in server.paths if "/resolve/" in path]
    assert files
    assert all(f"/resolve/{COMMIT}/" in path for path in files)


def test_the_manifest_holds_every_files_hash(bring, cache):
    bring("http://{host}/org/name")

    found = manifest.read_whole(cache / "model")
    assert {file.path: file.sha256 for file in found.files} == {
        name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()
    }


def test_a_whole_folder_is_used_without_asking_anybody(bring, server):
    bring()
    server.paths.clear()

    assert bring().was_there
    assert server.paths == []


def test_a_folder_that_lost_a_file_is_fetched_anew(bring, cache):
    bring()
    (cache / "model" / BIG).unlink()

    assert not bring().was_there
    assert content(cache / "model") == FILES


def test_one_file_of_a_repository(bring, served, cache):
    (served / "q4.gguf").write_bytes(b"GGUF" + b"q" * 9000)

    for uri in ("hf://org/name/q4.gguf", "s3://org/name/q4.gguf", "http://{host}/org/name/q4.gguf"):
        bring(uri)
        assert set(content(cache / "model")) == {"q4.gguf"}
        (cache / "model").rename(cache / f"model-{uri[:2]}")

"""The fake hub is understood by the hub's own client, so what passes with it means something."""

import pytest
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from tests.engine.fake_model_server import COMMIT, running


@pytest.fixture
def hub(tmp_path):
    folder = tmp_path / "served"
    (folder / "org" / "name").mkdir(parents=True)
    (folder / "org" / "name" / "config.json").write_text("{}")
    (folder / "org" / "name" / "model.safetensors").write_bytes(b"w" * 5000)
    with running(folder) as server:
        yield server


@pytest.fixture
def api(hub):
    return HfApi(endpoint=hub.url, token=False)


def test_the_real_client_reads_its_listing(api):
    info = api.model_info("org/name", files_metadata=True)

    small, large = info.siblings
    assert info.sha == COMMIT
    assert (small.rfilename, small.size, small.lfs) == ("config.json", 2, None)
    # What `git hash-object` says of these two bytes.
    assert small.blob_id == "9e26dfeeb6e641a33dae4961196235bdb965b21b"
    assert len(large.lfs.sha256) == 64
    assert large.lfs.size == large.size == 5000


@pytest.mark.parametrize(
    ("name", "revision", "error"),
    [
        ("org/other", "main", RepositoryNotFoundError),
        ("org/name", "v9", RevisionNotFoundError),
        ("org/gated", "main", GatedRepoError),
    ],
)
def test_the_real_client_understands_its_refusals(hub, api, name, revision, error):
    hub.faults.gated.add("org/gated")

    with pytest.raises(error):
        api.model_info(name, revision=revision)


def test_the_real_client_finds_files_where_it_says(hub):
    url = hf_hub_url("org/name", "config.json", revision=COMMIT, endpoint=hub.url)

    assert url == f"{hub.url}/org/name/resolve/{COMMIT}/config.json"

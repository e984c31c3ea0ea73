"""A fake source with a model, and `bring`, which fetches it into a cache."""

import pytest
from tests.engine.fake_model_server import running
from tests.engine.fetch.served_model import FILES, QUICK, USELESS

from octavo_engine.fetch import uri as model_uri
from octavo_engine.fetch.fetch import fetch
from octavo_engine.fetch.secrets import Secrets


@pytest.fixture
def served(tmp_path):
    folder = tmp_path / "served"
    for name, content in {**FILES, **USELESS}.items():
        path = folder / "org" / "name" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / "org" / "name"


@pytest.fixture
def server(served, monkeypatch):
    with running(served.parents[1]) as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.setenv("MODELSCOPE_DOMAIN", made.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        monkeypatch.setenv("AWS_REGION", "nowhere")
        monkeypatch.setenv("GOOGLE_BASE_URL", made.url)
        monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "AWS_ACCESS_KEY_ID"):
            monkeypatch.delenv(name, raising=False)
        yield made


@pytest.fixture
def cache(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


@pytest.fixture
def bring(server, cache):
    def into(uri="hf://org/name", secret=None, said=None, pace=QUICK):
        told = [] if said is None else said
        text = uri.format(host=server.url.removeprefix("http://"))
        return fetch(model_uri.parse(text), cache / "model", Secrets(secret), told.append, pace)

    return into

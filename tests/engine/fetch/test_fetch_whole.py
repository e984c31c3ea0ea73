"""A model that is not whole is refused, and never seen half."""

import pytest
from tests.engine.fetch.served_model import BIG, FILES

from octavo_engine.errors import CheckpointError


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("config.json", None, "config.json is missing"),
        ("tokenizer.json", None, "no tokenizer is there: tokenizer.json, or"),
        (BIG, None, f"names files that are not there: {BIG}"),
        (BIG, FILES[BIG][:-1], f"{BIG} has .* bytes, its header speaks of"),
        (BIG, b"short", f"{BIG} is cut off or not a safetensors file"),
    ],
)
def test_a_model_that_is_not_whole_is_refused(bring, served, cache, name, data, sentence):
    (served / name).unlink()
    if data is not None:
        (served / name).write_bytes(data)

    with pytest.raises(CheckpointError, match=sentence):
        bring()
    assert not (cache / "model").exists()


def test_a_repository_of_pickles_is_refused(bring, served):
    for path in served.rglob("*.safetensors"):
        path.unlink()

    with pytest.raises(CheckpointError, match=r"only pytorch_model\.bin, which would run code"):
        bring()


def test_a_repository_of_gguf_files_says_which(bring, served):
    for path in served.rglob("*.safetensors"):
        path.unlink()
    (served / "q4.gguf").write_bytes(b"GGUF")

    with pytest.raises(CheckpointError, match=r"name it in the URI: q4\.gguf"):
        bring()

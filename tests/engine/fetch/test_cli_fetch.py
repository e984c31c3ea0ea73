"""`octavo fetch` as a pod runs it: exit codes, and the words in its termination message."""

import json
import os
import subprocess
import sys

import pytest
from tests.engine.fake_model_server import running

CONFIG = (
    b'{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, '
    b'"max_position_embeddings": 64, "torch_dtype": "float16"}'
)


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served" / "org" / "name"
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(CONFIG)
    (folder / "tokenizer.json").write_bytes(b"{}")
    header = json.dumps({"w": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + b"ww"
    (folder / "model.safetensors").write_bytes(weights)
    with running(tmp_path / "served") as made:
        yield made


@pytest.fixture
def octavo(server, tmp_path):
    def run(*words):
        log = tmp_path / "termination"
        environment = {**os.environ, "HF_ENDPOINT": server.url, "NO_PROXY": "127.0.0.1"}
        environment.pop("HF_HUB_OFFLINE", None)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "octavo_engine", "fetch", *words),
                *("--to", str(tmp_path / "model"), "--termination-log", str(log)),
            ],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done, json.loads(log.read_bytes())

    return run


def test_a_fetch_leaves_what_it_brought(octavo, tmp_path):
    done, words = octavo("hf://org/name")

    assert done.returncode == 0, done.stderr
    assert words["reason"] == "Fetched"
    assert words["message"].startswith("hf://org/name at revision 1234567890abcdef")
    assert "in 3 files" in words["message"]
    assert words["fit"] == {
        **{"weightsBytes": 70, "kvTokenBytes": 64, "contextLen": 64},
        **{"kvTokens": None, "maxModelLen": None},
    }
    assert (tmp_path / "model" / "config.json").read_bytes() == CONFIG


def test_a_second_one_finds_it_there(octavo):
    octavo("hf://org/name")
    _, words = octavo("hf://org/name")

    assert "was there" in words["message"]


@pytest.mark.parametrize(
    ("words", "reason", "code"),
    [
        (("hf://org/other",), "DownloadFailed", 1),
        (("hf://org/name", "--secret-dir=/nowhere"), "SecretMissing", 1),
        (("hf://org/name", "--device=cpu", "--memory-gib=0.5"), "DoesNotFit", 2),
        (("ftp://org/name",), "InvalidConfiguration", 2),
        (("hf://org/name", "--no-such-option"), "InvalidConfiguration", 2),
    ],
)
def test_a_failure_leaves_its_cause(octavo, words, reason, code):
    done, left = octavo(*words)

    assert (left["reason"], done.returncode) == (reason, code)
    assert left["message"]


def test_a_mismatch_leaves_its_cause(octavo, server):
    server.faults.num_garbled = 100

    _, left = octavo("hf://org/name")
    assert left["reason"] == "ChecksumMismatch"


def test_an_incomplete_model_leaves_its_cause(octavo, server):
    (server.folder / "org" / "name" / "tokenizer.json").unlink()

    done, left = octavo("hf://org/name")
    assert (left["reason"], done.returncode) == ("ModelUnreadable", 2)
    assert "no tokenizer is there" in left["message"]


def test_fetching_loads_no_torch():
    code = (
        "import sys; from octavo_engine.cli import fetch; from octavo_engine.fetch import hub;"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

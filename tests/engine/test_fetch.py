"""A model's files from each kind of source into a folder: whole, checked, at once or not at all."""

import dataclasses
import hashlib
import json
import threading

import pytest
from tests.engine.fake_model_server import COMMIT, running

from octavo_engine.errors import CheckpointError
from octavo_engine.fetch import manifest, staged
from octavo_engine.fetch import uri as model_uri
from octavo_engine.fetch.errors import ChecksumMismatch, DownloadFailed, SecretMissing
from octavo_engine.fetch.fetch import fetch
from octavo_engine.fetch.pace import Pace
from octavo_engine.fetch.secrets import Secrets

PART_BYTES = 4096
QUICK = Pace(part_bytes=PART_BYTES, first_pause_s=0.001, lock_poll_s=0.01)


def safetensors(num_bytes, seed=0):
    data = bytes((idx * 7 + seed) % 251 for idx in range(num_bytes))
    entry = {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}
    header = json.dumps({"__metadata__": {"format": "pt"}, f"w{seed}": entry}).encode()
    return len(header).to_bytes(8, "little") + header + data


FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": safetensors(30_000, 0),
    "model-00002-of-00002.safetensors": safetensors(10_000, 1),
    "model.safetensors.index.json": json.dumps(
        {
            "weight_map": {
                "w0": "model-00001-of-00002.safetensors",
                "w1": "model-00002-of-00002.safetensors",
            }
        }
    ).encode(),
}
USELESS = {
    "README.md": b"words",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"again",
    "onnx/model.safetensors": b"other",
}
BIG = "model-00001-of-00002.safetensors"


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


def content(folder):
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if not path.name.startswith(".octavo")
    }


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


# ---- what goes wrong on the way ----


def test_a_broken_transfer_goes_on_where_it_broke(bring, server, cache):
    server.faults.num_cut = 5
    server.faults.num_unavailable = 5
    bring()

    assert content(cache / "model") == FILES
    assert server.faults.num_cut == server.faults.num_unavailable == 0


def test_a_restart_fetches_only_what_is_missing(bring, server, cache, monkeypatch):
    finish = staged.StagedFile.finish_part
    num_finished = 0

    def crash_after_five(self, part_idx):
        nonlocal num_finished
        num_finished += 1
        if num_finished > 5:
            raise KeyboardInterrupt
        return finish(self, part_idx)

    with monkeypatch.context() as patch:
        patch.setattr(staged.StagedFile, "finish_part", crash_after_five)
        with pytest.raises(KeyboardInterrupt):
            bring(pace=dataclasses.replace(QUICK, num_workers=1))
    assert not (cache / "model").exists(), "nothing half done is ever seen"
    server.sent_bytes.clear()
    bring()

    assert content(cache / "model") == FILES
    assert server.sent_bytes[BIG] == len(FILES[BIG]) - 5 * PART_BYTES


def test_parts_that_a_power_cut_spoiled_are_fetched_again(bring, server, cache, served):
    incoming = cache / ".model.incoming"
    incoming.mkdir()
    (incoming / f"{BIG}.part").write_bytes(b"\0" * len(FILES[BIG]))
    (incoming / f"{BIG}.parts").write_text("0\n1\n")
    bring()

    assert content(cache / "model") == FILES


def test_what_is_not_what_the_source_says_is_refused(bring, server, cache):
    server.faults.num_garbled = 1000

    with pytest.raises(ChecksumMismatch, match=r"has (sha256|git-sha1) [0-9a-f]+, its source says"):
        bring()
    assert not (cache / "model").exists()


def test_sums_beside_the_files_are_checked(bring, server, served, cache):
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}" for name, data in FILES.items()]
    (served / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    bring("s3://org/name")
    assert content(cache / "model") == FILES

    (cache / "model").rename(cache / "first")
    (served / "SHA256SUMS").write_text("\n".join(lines).replace(lines[0][:8], "deadbeef", 1))
    for uri in ("s3://org/name", "http://{host}/org/name"):
        with pytest.raises(ChecksumMismatch, match=r"config.json has sha256 .* says deadbeef"):
            bring(uri)


def test_a_server_without_ranges_is_read_all_the_same(bring, server, cache):
    server.faults.knows_ranges = False
    bring("http://{host}/org/name")

    assert content(cache / "model") == FILES


def test_a_source_that_stays_away_is_given_up(bring, server):
    server.faults.num_unavailable = 10_000

    with pytest.raises(DownloadFailed, match=r"answers 503 .* \(tried 6 times\)"):
        bring()


def test_nobody_there(bring, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    with pytest.raises(DownloadFailed, match=r"127.0.0.1:9.*\(tried 6 times\)"):
        bring()


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("hf://org/other", "org/other at http://.* does not exist, or is private"),
        ("hf://org/name@v9", "has no revision 'v9'"),
        ("hf://org/gated", "is gated: its terms must be accepted"),
        ("modelscope://org/other", "answers 404"),
        ("http://{host}/org/other", "answers 404"),
    ],
)
def test_what_is_not_to_be_had_is_told_at_once(bring, server, uri, sentence):
    server.faults.gated.add("org/gated")

    with pytest.raises(DownloadFailed, match=sentence):
        bring(uri)
    assert len(server.paths) < 40, "no use in trying again"


def test_a_source_without_network_is_told(bring, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(DownloadFailed, match="HF_HUB_OFFLINE is set"):
        bring()


def test_a_cache_without_room(bring, cache, monkeypatch):
    monkeypatch.setattr(
        "octavo_engine.fetch.transfer.os.statvfs",
        lambda path: type("Place", (), {"f_bavail": 3, "f_frsize": 1024})(),
    )

    with pytest.raises(DownloadFailed, match=r"no room: 0\.0 MiB are missing, 0\.0 MiB are free"):
        bring()


# ---- a model that is not whole ----


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


# ---- secrets ----


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


# ---- a cache that pods share ----


def test_two_pods_fetch_once(bring, server, cache):
    server.faults.num_unavailable = 3
    results, said = [], []
    threads = [threading.Thread(target=lambda: results.append(bring(said=said))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(result.was_there for result in results) == [False, True, True]
    assert server.sent_bytes[BIG] == len(FILES[BIG])
    assert "another pod fetches the same model into this cache" in said


def test_files_that_the_source_no_longer_has_do_not_stay(bring, cache):
    incoming = cache / ".model.incoming"
    incoming.mkdir()
    (incoming / "old.json").write_text("{}")
    (incoming / "old.safetensors.part").write_text("x")
    bring()

    assert content(cache / "model") == FILES

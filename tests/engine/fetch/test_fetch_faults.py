"""What goes wrong on the way: broken transfers, spoiled bytes, sources that are not to be had."""

import dataclasses
import hashlib

import pytest
from tests.engine.fetch.served_model import BIG, FILES, PART_BYTES, QUICK, content

from octavo_engine.fetch import staged
from octavo_engine.fetch.errors import ChecksumMismatch, DownloadFailed


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

    with pytest.raises(DownloadFailed, match=sentence) as caught:
        bring(uri)
    assert "tried" not in str(caught.value), "no use in trying again"


def test_a_source_without_network_is_told(bring, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(DownloadFailed, match="HF_HUB_OFFLINE is set"):
        bring()


def test_a_bucket_without_any_certificates_is_told(bring, monkeypatch, tmp_path):
    """As in an image that has none: the library wants them even for plain HTTP."""
    monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))

    with pytest.raises(DownloadFailed, match=r"^s3://org/name: .*No CA certificates"):
        bring("s3://org/name")


def test_a_cache_without_room(bring, cache, monkeypatch):
    monkeypatch.setattr(
        "octavo_engine.fetch.transfer.os.statvfs",
        lambda path: type("Place", (), {"f_bavail": 3, "f_frsize": 1024})(),
    )

    with pytest.raises(DownloadFailed, match=r"no room: 0\.0 MiB are missing, 0\.0 MiB are free"):
        bring()

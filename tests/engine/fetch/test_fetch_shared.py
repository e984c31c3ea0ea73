"""A cache that several pods share, and what an earlier fetch has left in it."""

import threading

from tests.engine.fetch.served_model import BIG, FILES, content


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

"""`generate_file`: OpenAI's batch format, and going on after being killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.engine import byte_tokenizer
from tests.engine.byte_model import save_byte_model
from tests.engine.fake_runner import FakeRunner
from tests.engine.generate_child import run
from tests.engine.stuck_runner import StuckRunner
from typer.testing import CliRunner, Result

from octavo_engine.cli.main import app
from octavo_engine.config import SchedulerSettings
from octavo_engine.core import in_process
from octavo_engine.errors import EngineDead, RequestError
from octavo_engine.offline.generate_files import ResultsFile

REPOSITORY = Path(__file__).parents[2]


def chat_line(custom_id: str, **fields: object) -> dict[str, object]:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": custom_id}],
        "temperature": 0,
        "max_tokens": 12,
        **fields,
    }
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(path: Path) -> dict[str, dict[str, object]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["custom_id"] for line in lines}) == len(lines), "a line is repeated"
    return {line["custom_id"]: line["response"] for line in lines}


def test_every_request_gets_one_line_with_the_endpoints_answer(tmp_path):
    completion = {
        "custom_id": "text",
        "url": "/v1/completions",
        "body": {"model": "tiny", "prompt": "Once", "max_tokens": 3, "temperature": 0},
    }
    response = {
        "custom_id": "items",
        "url": "/v1/responses",
        "body": {"model": "tiny", "input": "Once", "max_output_tokens": 3},
    }
    lines = [*(chat_line(str(i)) for i in range(30)), completion, response]
    summary = run(write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl", FakeRunner())
    assert (summary.num_requests, summary.num_ok, summary.num_failed) == (32, 32, 0)
    results = read(tmp_path / "out.jsonl")
    assert set(results) == {*map(str, range(30)), "text", "items"}
    answer = results["7"]
    assert answer["status_code"] == 200
    assert answer["body"]["object"] == "chat.completion"
    assert answer["body"]["usage"]["completion_tokens"] == 12
    assert results["text"]["body"]["object"] == "text_completion"
    assert results["items"]["body"]["object"] == "response"


def test_a_wrong_request_fails_alone_and_its_line_says_why(tmp_path):
    lines = [
        chat_line("good"),
        chat_line("hot", temperature=9),
        chat_line("streamed", stream=True),
        chat_line("other", model="gpt-5"),
        {"custom_id": "where", "url": "/v1/embeddings", "body": {}},
    ]
    summary = run(write(tmp_path / "in", lines), tmp_path / "out", FakeRunner())
    assert (summary.num_ok, summary.num_failed) == (1, 4)
    results = read(tmp_path / "out")
    codes = {name: result["status_code"] for name, result in results.items()}
    assert codes == {"good": 200, "hot": 400, "streamed": 400, "other": 404, "where": 404}
    assert "temperature" in results["hot"]["body"]["error"]["message"]


def test_what_nobody_expected_is_a_500_of_its_line_alone(tmp_path):
    text = {"custom_id": "bad", "url": "/v1/completions", "body": {"model": "tiny", "prompt": "a"}}
    source = write(tmp_path / "in", [chat_line("one"), text, chat_line("two")])
    broken = "octavo_engine.server.generation_routes.prepare_completion"
    with patch(broken, side_effect=ZeroDivisionError):
        summary = run(source, tmp_path / "out", FakeRunner())
    assert (summary.num_ok, summary.num_failed) == (2, 1)
    bad = read(tmp_path / "out")["bad"]
    assert bad["status_code"] == 500
    assert bad["body"]["error"]["message"] == "internal error"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"custom_id": "a"}\n', ["line 1", "url"]),
        (json.dumps(chat_line("a")) + "\nnot json\n", ["line 2"]),
        ((json.dumps(chat_line("a")) + "\n") * 2, ["'a'", "twice"]),
        (json.dumps(chat_line("a") | {"method": "GET"}), ["line 1", "GET"]),
    ],
)
def test_a_broken_requests_file_is_refused_before_anything_runs(tmp_path, text, words):
    (tmp_path / "in").write_text(text)
    with pytest.raises(RequestError) as caught:
        run(tmp_path / "in", tmp_path / "out", FakeRunner())
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_results_file_of_something_else_is_left_alone(tmp_path):
    source = write(tmp_path / "in", [chat_line("a")])
    for text in ("my notes\n", '{"custom_id": "unknown"}\n'):
        (tmp_path / "out").write_text(text)
        with pytest.raises(RequestError, match=r"no result of a batch|another batch"):
            run(source, tmp_path / "out", FakeRunner())
        assert (tmp_path / "out").read_text() == text


def test_a_line_cut_short_is_done_again(tmp_path):
    source = write(tmp_path / "in", [chat_line(str(i)) for i in range(6)])
    run(source, tmp_path / "out", FakeRunner())
    whole = (tmp_path / "out").read_bytes()
    lines = whole.splitlines(keepends=True)
    (tmp_path / "out").write_bytes(b"".join(lines[:3]) + lines[3][:20])
    summary = run(source, tmp_path / "out", FakeRunner())
    assert (summary.num_done_before, summary.num_ok) == (3, 3)
    assert set(read(tmp_path / "out")) == set(map(str, range(6)))
    assert (tmp_path / "out").read_bytes().startswith(b"".join(lines[:3]))


def test_a_finished_batch_runs_nothing(tmp_path):
    source = write(tmp_path / "in", [chat_line("a")])
    run(source, tmp_path / "out", FakeRunner())
    before = (tmp_path / "out").read_bytes()
    runner = FakeRunner(batches=[])
    assert run(source, tmp_path / "out", runner).num_done_before == 1
    assert runner.batches == []
    assert (tmp_path / "out").read_bytes() == before


def test_two_processes_cannot_write_one_results_file(tmp_path):
    source = write(tmp_path / "in", [chat_line("a")])
    with ResultsFile(tmp_path / "out"), pytest.raises(RequestError, match="another process"):
        run(source, tmp_path / "out", FakeRunner())


def test_an_engine_that_dies_writes_no_failures_for_what_it_did_not_run(tmp_path):
    source = write(tmp_path / "in", [chat_line(str(i)) for i in range(40)])
    runner = FakeRunner(
        raise_in_step=lambda batch: RuntimeError("device lost") if batch.step_id == 20 else None
    )
    with pytest.raises(EngineDead, match="device lost"):
        run(source, tmp_path / "out", runner)
    assert all(result["status_code"] == 200 for result in read(tmp_path / "out").values())
    run(source, tmp_path / "out", FakeRunner())
    assert len(read(tmp_path / "out")) == 40


def test_the_command_says_why_a_rank_has_ended_although_a_step_never_does(tmp_path, monkeypatch):
    source = write(tmp_path / "in.jsonl", [chat_line("a")])
    runner = StuckRunner(byte_tokenizer.VOCAB_SIZE)
    engine = in_process.InProcessEngine(runner, SchedulerSettings())
    monkeypatch.setattr(in_process, "build_engine", lambda config: engine)
    monkeypatch.setattr(in_process, "_END_LIMIT_S", 0.1)
    monkeypatch.setattr("octavo_engine.cli.generate.start_logs", lambda log_format: None)
    command = ["generate", str(save_byte_model(tmp_path / "tiny")), "--input", str(source)]
    command += ["--output", str(tmp_path / "out.jsonl")]
    results: list[Result] = []
    asking = threading.Thread(
        target=lambda: results.append(CliRunner().invoke(app, command)), daemon=True
    )
    asking.start()
    assert runner.has_launched.wait(60)
    runner.fail("rank 1 has ended by signal 9")
    asking.join(60)
    has_ended = not asking.is_alive()
    runner.released.set()
    assert runner.has_closed.wait(60)
    asking.join(60)  # it has the process's standard output until then
    assert has_ended
    (result,) = results
    assert result.exit_code == 1
    assert "rank 1 has ended by signal 9" in result.stderr


def test_killed_again_and_again_it_loses_and_repeats_nothing(tmp_path):
    lines = [chat_line(str(i)) for i in range(120)]
    source, target = write(tmp_path / "in", lines), tmp_path / "out"
    command = [sys.executable, "-m", "tests.engine.generate_child", str(source), str(target)]
    sizes = []
    for _ in range(2):
        before = target.stat().st_size if target.exists() else 0
        child = subprocess.Popen([*command, "0.02"], cwd=REPOSITORY)
        deadline_s = time.monotonic() + 60
        while not target.exists() or target.stat().st_size < before + 3000:
            assert time.monotonic() < deadline_s, "the child writes nothing"
            assert child.poll() is None, "the child has ended by itself"
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        sizes.append(target.stat().st_size)
    assert sizes == sorted(set(sizes))
    first = target.read_bytes()
    subprocess.run([*command, "0"], cwd=REPOSITORY, check=True, timeout=60)
    assert set(read(target)) == {str(i) for i in range(120)}
    assert target.read_bytes().startswith(first[: first.rindex(b"\n") + 1])

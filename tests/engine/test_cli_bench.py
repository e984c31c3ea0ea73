"""`octavo bench serve`: what it sends, when, and what it makes of the answers."""

import asyncio
import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.echo_engine import EchoEngine, always
from tests.engine.test_server_life import Process, process
from typer.testing import CliRunner, Result

from octavo_engine.bench.report import summary
from octavo_engine.bench.sample import Sample, SampleReader
from octavo_engine.bench.workload import TraceError, prompt, read_trace, synthetic
from octavo_engine.cli.main import app

STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    b": keep-alive\n\n"
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"b"}}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)


async def run_bench(server: Process, *arguments: str) -> Result:
    command = ["bench", "serve", "--url", str(server.http.base_url), *arguments]
    return await asyncio.to_thread(CliRunner().invoke, app, command)


@pytest.mark.parametrize("arguments", [["--concurrency", "3"], ["--rate", "200"], ["--chat"]])
async def test_every_loop_counts_all_requests_and_tokens(
    tmp_path: Path, arguments: list[str]
) -> None:
    engine, out = EchoEngine(always("x" * 12), max_model_len=1000), tmp_path / "out.json"
    async with process(engine) as server:
        await server.until_status("/readyz", 200)
        sizes = ["--num-requests", "7", "--input-tokens", "20", "--output-tokens", "12"]
        result = await run_bench(server, *arguments, *sizes, "--json", str(out))
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())
    assert (figures["requests"], figures["failed"], figures["output_tokens"]) == (7, 0, 7 * 12)
    assert figures["prompt_tokens"] == sum(len(r.prompt_token_ids) for r in engine.requests)
    for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
        assert figures[name]["p50"] <= figures[name]["p99"] <= figures[name]["max"]
    assert "TTFT" in result.output
    assert figures["settings"]["loop"] == ("open" if "--rate" in arguments else "closed")


async def test_failed_requests_are_told_and_end_with_code_1(tmp_path: Path) -> None:
    engine = EchoEngine(always("x"), max_model_len=30)
    async with process(engine) as server:
        await server.until_status("/readyz", 200)
        result = await run_bench(server, "--num-requests", "2", "--input-tokens", "500")
    assert result.exit_code == 1
    assert "2 failed" in result.output
    assert "status 400" in result.output


async def test_trace_is_played_with_its_sizes(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp_s": i / 10, "input_tokens": 5, "output_tokens": i + 1} for i in range(4)]
    trace.write_text("\n".join(json.dumps(row) for row in rows))
    engine = EchoEngine(always("x" * 50), max_model_len=1000)
    async with process(engine) as server:
        await server.until_status("/readyz", 200)
        result = await run_bench(server, "--trace", str(trace), "--trace-speed", "100")
    assert result.exit_code == 0, result.output
    assert sorted(request.params.max_tokens or 0 for request in engine.requests) == [1, 2, 3, 4]


def test_two_kinds_of_load_at_once_are_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "serve", "--rate", "1", "--concurrency", "1"])
    assert result.exit_code == 2


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_figures_do_not_depend_on_how_the_stream_is_cut(cuts: list[int]) -> None:
    sample = Sample(start_s=0.0)
    reader = SampleReader(sample)
    edges = [0, *sorted(cuts), len(STREAM)]
    for begin, end in pairwise(edges):
        reader.take(STREAM[begin:end], 1.0)
    reader.finish(200)
    assert sample.error is None
    assert (sample.num_prompt_tokens, sample.num_output_tokens) == (3, 2)
    assert (sample.first_token_s, sample.gaps_s) == (1.0, [0.0])


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'data: {"choices":[{"text":"a"}]}\n\n', 200, "without [DONE]"),
        (b'data: {"error":{"message":"broke"}}\n\ndata: [DONE]\n\n', 200, "broke"),
        (b'{"error":{"message":"too long"}}', 400, "status 400: too long"),
        (b"<html>", 502, "status 502: <html>"),
    ],
)
def test_what_goes_wrong_is_in_the_sample(body: bytes, status: int, words: str) -> None:
    sample = Sample(start_s=0.0)
    reader = SampleReader(sample)
    reader.take(body, 1.0)
    reader.finish(status)
    assert sample.error is not None
    assert words in sample.error


def test_percentiles_are_those_of_the_good_requests() -> None:
    good = [
        Sample(0.0, first_token_s=i / 100, last_token_s=1.0, num_output_tokens=11)
        for i in range(1, 101)
    ]
    bad = Sample(0.0, error="status 500")
    figures = summary([*good, bad], duration_s=2.0)
    assert figures["requests"] == 101
    assert figures["errors"] == {"status 500": 1}
    assert figures["output_tokens_per_s"] == 100 * 11 / 2
    assert figures["ttft_ms"]["p50"] == pytest.approx(505)
    assert figures["ttft_ms"]["p99"] == pytest.approx(990.1)
    assert figures["e2e_ms"]["max"] == 1000
    assert figures["itl_ms"] is None


def test_arrivals_follow_the_rate_and_the_seed() -> None:
    plan = synthetic(2000, 5, 6, rate=10.0, seed=1)
    assert plan == synthetic(2000, 5, 6, rate=10.0, seed=1)
    assert plan[-1].at_s == pytest.approx(200, rel=0.1)
    assert all(planned.at_s == 0 for planned in synthetic(3, 5, 6, rate=None, seed=1))


def test_azures_traces_can_be_read(tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.9799600,110,27\n"
    )
    first, second = read_trace(trace, None, speed=2.0)
    assert (first.at_s, first.num_input_words, first.num_output_tokens) == (0.0, 4808, 10)
    assert second.at_s == pytest.approx(1.0)
    assert len(read_trace(trace, 1, speed=1.0)) == 1


@pytest.mark.parametrize(
    "content", ["", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "a,b\n1,2\n"]
)
def test_broken_trace_is_refused_by_name(tmp_path: Path, content: str) -> None:
    trace = tmp_path / "broken.csv"
    trace.write_text(content)
    with pytest.raises(TraceError, match=r"broken\.csv"):
        read_trace(trace, None, 1.0)


def test_prompts_differ() -> None:
    rng = random.Random(0)
    assert prompt(20, rng) != prompt(20, rng)
    assert len(prompt(20, rng).split()) == 20

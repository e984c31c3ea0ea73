"""The real `openai` client against the real engine over SmolLM2, in a process of its own."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
import torch
from pydantic import BaseModel
from tests.conformance.suite import CLIENTS, run_client
from tests.engine.server_process import ServerProcess, serving_process
from tests.engine.tiny_models import forced_tokens
from transformers import AutoModelForCausalLM

from octavo_engine.text.tokenizer import load_tokenizer

MODEL = "smollm2"
NUM_TOKENS = 12
PROMPTS = [
    "The sea is",
    "Once upon a time, in a village by the river,",
    "def add(a, b):\n    return",
    "The three primary colours are red,",
    "Water boils at",
    "1, 1, 2, 3, 5, 8,",
    "My favourite season is autumn, because",
    "Dear Sir or Madam,\n\nI am writing to",
    "The capital of France is",
    "A cat and a dog " * 30 + "went",
]


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[ServerProcess]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--served-model-name", MODEL, "--dtype", "float32", "--drain-grace-seconds", "1"]
    options += ["--max-model-len", "1024"]  # an example without max_tokens may ramble
    with serving_process(smollm2_path, port, *options) as process:
        process.wait_ready()
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def reference_model(smollm2_path: Path) -> Any:
    """By transformers, in float32."""
    return AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32)


def ids_of(completion: Any) -> list[int]:
    ids: list[int] = completion.choices[0].token_ids
    return ids


def greedy(prompt: str) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "extra_body": {"return_token_ids": True},
    }


@pytest.fixture(scope="module")
def alone_ids(server: ServerProcess) -> list[list[int]]:
    """The tokens of each prompt, asked for one after the other."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        return [ids_of(client.completions.create(**greedy(prompt))) for prompt in PROMPTS]


def test_ten_prompts_alone_give_the_tokens_of_transformers(
    alone_ids: list[list[int]], smollm2_path: Path, reference_model: Any
) -> None:
    tokenizer = load_tokenizer(smollm2_path)
    for prompt, ids in zip(PROMPTS, alone_ids, strict=True):
        assert len(ids) == NUM_TOKENS
        assert ids == forced_tokens(reference_model, tokenizer.encode(prompt), ids), prompt


async def test_ten_prompts_together_give_the_same_tokens(
    server: ServerProcess, alone_ids: list[list[int]]
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        answers = await asyncio.gather(
            *(client.completions.create(**greedy(prompt)) for prompt in PROMPTS)
        )
    assert [ids_of(answer) for answer in answers] == alone_ids


def test_chat_streamed_equals_the_plain_answer(client: openai.OpenAI) -> None:
    request: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Write one sentence about the sea."}],
        "max_tokens": 16,
        "temperature": 0.8,
        "seed": 7,
    }
    plain = client.chat.completions.create(**request)
    stream = client.chat.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == plain.choices[0].message.content
    assert text
    assert chunks[-2].choices[0].finish_reason == plain.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens


def test_answer_ends_at_its_end_token(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=30,
    )
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"


def test_stop_string_cuts_the_text(client: openai.OpenAI) -> None:
    full = client.completions.create(**greedy("The sea is")).choices[0].text
    stop = full[10:14]
    answer = client.completions.create(**greedy("The sea is"), stop=[stop])
    assert answer.choices[0].text == full[: full.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_n_answers_differ_by_seed_and_repeat(client: openai.OpenAI) -> None:
    request: Any = {
        "model": MODEL,
        "prompt": "Once upon a time",
        "n": 3,
        "seed": 1,
        "max_tokens": 10,
    }
    texts = [
        [choice.text for choice in client.completions.create(**request).choices] for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3


def test_logprobs_are_those_of_the_most_likely_tokens(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        temperature=0,
        max_tokens=3,
        logprobs=True,
        top_logprobs=2,
    )
    content = answer.choices[0].logprobs.content  # type: ignore[union-attr]  # asked for, so it is there
    assert len(content) == 3  # type: ignore[arg-type]  # asked for, so it is there
    for entry in content or []:
        assert entry.logprob == entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
        assert bytes(entry.bytes or []).decode() == entry.token


def test_prompts_are_scored_as_evaluation_harnesses_ask_for_it(
    client: openai.OpenAI, smollm2_path: Path, reference_model: Any
) -> None:
    """Token ids in, the continuation's logprobs out: whether it is what the model would say."""
    tokenizer = load_tokenizer(smollm2_path)
    prompts = [tokenizer.encode(f"The capital of France is{name}") for name in (" Paris", " Rome")]
    answer = client.completions.create(
        model=MODEL, prompt=prompts, echo=True, logprobs=1, max_tokens=0, temperature=0, seed=1234
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    for choice, ids in zip(answer.choices, prompts, strict=True):
        assert choice.logprobs is not None
        with torch.no_grad():
            logits = reference_model(torch.tensor([ids])).logits[0]
        known = logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]].tolist()
        scores = choice.logprobs.token_logprobs or []
        assert scores[0] is None
        assert scores[1:] == pytest.approx(known, abs=1e-3)
        tops = choice.logprobs.top_logprobs or []
        is_greedy = [
            score == max(top.values()) for score, top in zip(scores[1:], tops[1:], strict=True)
        ]
        assert is_greedy == (logits[:-1].argmax(-1) == torch.tensor(ids[1:])).tolist()
        assert "".join(choice.logprobs.tokens or []) == choice.text == tokenizer.decode(ids)


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    days: int


def earlier_call(city: str) -> list[Any]:
    """A turn with a call against the schema: what the model will do again."""
    function = {"name": "Weather", "arguments": json.dumps({"town": city})}
    return [
        {"role": "user", "content": f"Weather in {city}?"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "assistant", "content": "It is sunny."},
    ]


def test_a_model_that_calls_by_itself_is_held_to_a_strict_schema(client: openai.OpenAI) -> None:
    turns = [turn for city in ("Oslo", "Bern", "Bonn") for turn in earlier_call(city)]
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[*turns, {"role": "user", "content": "Weather in Paris?"}],
        tools=[openai.pydantic_function_tool(Weather)],
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=60,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert Weather.model_validate_json(call.function.arguments, extra="forbid")


def test_models_are_listed(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert model.max_model_len > 1000  # type: ignore[attr-defined]  # a field of ours that openai lacks


@pytest.mark.parametrize("name", CLIENTS)
def test_the_server_conforms_to_what_each_client_knows(server: ServerProcess, name: str) -> None:
    findings = run_client(name, server.url, MODEL, key="none")
    assert len(findings) >= 6
    assert [finding for finding in findings if not finding.is_good] == []


def readme_commands() -> list[str]:
    """The `curl` commands of the README, each with the lines that it goes on in."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    return re.findall(r"(?m)^ {4}curl .*\n(?: {4,}.+\n)*", text)


@pytest.mark.parametrize("command", readme_commands())
def test_the_readmes_curl_examples_answer(server: ServerProcess, command: str) -> None:
    assert "http://127.0.0.1:8000/" in command
    asked = command.replace("http://127.0.0.1:8000", server.url).replace("curl ", "curl -sS ", 1)
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (choice,) = json.loads(done.stdout)["choices"]
    assert choice["message"]["content"]


def test_the_readme_has_an_example_for_curl_and_one_for_the_client(server: ServerProcess) -> None:
    assert readme_commands()
    text = (Path(__file__).parents[2] / "README.md").read_text()
    (example,) = re.findall(r"```python\n(from openai.*?)```", text, re.DOTALL)
    here = re.sub(r'base_url="[^"]*"', f'base_url="{server.url}/v1"', example)
    code = f"{here}\nprint(answer.choices[0].message.content)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1}, "temperature"),
    ({"max_tokens": 10**6}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"logit_bias": {"49152": 1}}, "logit_bias"),
    ({"extra_body": {"stop_token_ids": [49152]}}, "stop_token_ids"),
    ({"extra_body": {"colour": "red"}}, "colour"),
    ({"extra_body": {"guided_json": 3}}, "guided_json"),
    ({"prompt": [49152]}, "prompt"),
    ({"prompt": "word " * 9000}, "prompt"),
    ({"stop": ["x"] * 100}, "stop"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_wrong_request_is_a_400_that_names_the_field(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    request: Any = {"model": MODEL, "prompt": "hi"} | fields
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**request)
    assert caught.value.param is not None
    assert caught.value.param.partition(".")[0] == param


def test_client_that_leaves_frees_its_pages(server: ServerProcess, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL, prompt="The sea is", max_tokens=900, stream=True, temperature=0
    )
    next(iter(stream))
    assert metric(server, "vllm:kv_cache_usage_perc") > 0
    stream.close()
    wait_for_zero(server, "vllm:kv_cache_usage_perc")
    assert metric(server, "vllm:num_requests_running") == 0


def test_signal_lets_the_stream_finish_and_ends_with_code_0(
    server: ServerProcess, client: openai.OpenAI
) -> None:
    """Last in this file: the server is gone afterwards."""
    stream = client.completions.create(
        model=MODEL,
        prompt="The sea is",
        max_tokens=30,
        stream=True,
        stream_options={"include_usage": True},
        temperature=0,
    )
    next(iter(stream))
    server.signal(signal.SIGTERM)
    *_, last, usage = stream
    assert last.choices[0].finish_reason == "length"
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 30
    assert server.exit_code() == 0, server.log


def metric(server: ServerProcess, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    match = re.search(rf"^{re.escape(name)}{{.*}} (\S+)$", text, re.MULTILINE)
    assert match is not None, name
    return float(match[1])


def wait_for_zero(server: ServerProcess, name: str) -> None:
    for _ in range(100):
        if metric(server, name) == 0:
            return
    raise AssertionError(f"{name} is still {metric(server, name)}")

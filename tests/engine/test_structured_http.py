"""Structured output over HTTP with a real engine over a random model: every answer has its form."""

import json
import re
import time
from typing import Any

import jsonschema
import pytest
from tests.engine.byte_model import save_byte_model
from tests.engine.byte_tokenizer import make_tokenizer
from tests.engine.chat_messages import TOOL_TEMPLATE, joined_message, message_of
from tests.engine.echo_engine import EchoEngine, always
from tests.engine.joined import joined_chat, without_ids
from tests.engine.server_client import client_of, make_state

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.core.in_process import build_engine
from octavo_engine.core.process_client import ProcessEngine
from octavo_engine.progress import silent
from octavo_engine.server.chat_formats import choose_formats
from octavo_engine.server.errors import ApiError
from octavo_engine.server.settings import ReasoningParserName, ToolParserName
from octavo_engine.server.state import Loaded
from octavo_engine.server.structure import GrammarCheck, GrammarChecks
from octavo_engine.structured.compiler import GrammarCompiler
from octavo_engine.structured.grammars import regex_grammar
from octavo_engine.text.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-zé]{1,6}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
TOOLS = [
    {"type": "function", "function": {"name": "person", "parameters": PERSON}},
    {
        "type": "function",
        "function": {"name": "flag", "parameters": {"properties": {"on": {"type": "boolean"}},
                     "required": ["on"], "additionalProperties": False}},
    },
]  # fmt: skip


@pytest.fixture(scope="module", params=["core in the process", "core apart"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Every case over both: masks, logprobs and ends cross the border between two processes."""
    folder = save_byte_model(tmp_path_factory.mktemp("byte_model"))
    config = EngineConfig(
        model=ModelSettings(path=str(folder), device="cpu"),
        cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02),
    )
    if request.param == "core apart":
        engine = ProcessEngine(config, "json")
        engine.load(silent)
    else:
        engine = build_engine(config)
    yield engine
    engine.close_blocking()


def state_of(engine: Any, tool_parser: ToolParserName = "hermes", template: str = TOOL_TEMPLATE):
    """Reasoning is looked for where the template opens it."""
    tokenizer = make_tokenizer(chat_template=template)
    reasoning: ReasoningParserName = "think" if "<think>" in template else "none"
    state = make_state(engine, tokenizer)
    state.loaded = Loaded(engine, tokenizer, choose_formats(tool_parser, reasoning, tokenizer))
    return state


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"choice": ["yes", "nö"]}}, r"yes|nö"),
    ({"structured_outputs": {"regex": r"[0-9]{2}:[0-9]{2}"}}, r"\d\d:\d\d"),
    ({"structured_outputs": {"grammar": 'root ::= "a" ("b" | "c") "d"'}}, "a[bc]d"),
    ({"structured_outputs": {"json": PERSON}}, r"\{.*\}"),
    ({"guided_regex": "x{3}"}, "xxx"),
    ({"guided_choice": ["a"]}, "a"),
    ({"guided_json": json.dumps(PERSON)}, r"\{.*\}"),
    ({"guided_grammar": 'start: "a" "b"'}, "ab"),
]


@pytest.mark.parametrize(("fields", "pattern"), FORMS)
async def test_completions_follow_every_kind_of_form(engine, fields, pattern):
    async with client_of(state_of(engine)) as client:
        answer = await client.complete("Say:", max_tokens=150, n=2, logprobs=1, seed=1, **fields)
        chunks = await client.stream_complete("Say:", max_tokens=150, n=2, seed=1, **fields)
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["text"], re.DOTALL), choice["text"]
        pieces = [c["choices"][0] for c in chunks]
        mine = [piece["text"] for piece in pieces if piece["index"] == choice["index"]]
        assert "".join(mine) == choice["text"]


@pytest.mark.parametrize("temperature", [0, 1.5])
async def test_a_chat_follows_its_schema_whole_and_streamed(engine, temperature):
    fields = {"response_format": FORMAT, "temperature": temperature, "seed": 4}
    async with client_of(state_of(engine)) as client:
        whole, reason = message_of(await client.chat(**fields))
        chunks = await client.stream_chat(**fields)
    assert reason == "stop"
    jsonschema.validate(json.loads(whole.content), PERSON)
    assert joined_message(chunks) == (whole, reason)


WORKS_WITH: dict[str, dict[str, Any]] = {
    "n": {"n": 3},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "stop strings": {"stop": [","]},
    "tools": {"tools": TOOLS, "tool_choice": "none"},
    "all of them": {"n": 2, "logprobs": True, "stop": ["}"], "tools": TOOLS},
}


@pytest.mark.parametrize("fields", WORKS_WITH.values(), ids=WORKS_WITH)
async def test_a_form_works_with(engine, fields):
    fields = {"response_format": FORMAT, "temperature": 1.2, "seed": 4, **fields}
    async with client_of(state_of(engine)) as client:
        answer = await client.chat(**fields)
        chunks = await client.stream_chat(**fields)
    assert comparable(joined_chat(chunks)) == comparable(answer["choices"])
    assert len(answer["choices"]) == fields.get("n", 1)
    for choice in answer["choices"]:
        assert choice["finish_reason"] in ("stop", "tool_calls")
        text = choice["message"]["content"]
        if text and choice["stop_reason"] is None:
            jsonschema.validate(json.loads(text), PERSON)
        elif text:
            assert re.match(r'\{\s*"name"', text)
            assert choice["stop_reason"] not in text
        if "logprobs" in fields:
            entries = choice["logprobs"]["content"]
            written = b"".join(bytes(entry["bytes"]) for entry in entries)
            assert written.startswith((text or "").encode())


def comparable(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Logprobs of one text differ by a hair from run to run, as steps have other rows."""
    for choice in choices:
        for entry in (choice["logprobs"] or {"content": []})["content"]:
            for each in (entry, *entry["top_logprobs"]):
                each["logprob"] = round(each["logprob"], 3)
    stripped: list[dict[str, Any]] = without_ids(choices)
    return stripped


@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "mistral", "json"])
@pytest.mark.parametrize("parallel", [True, False])
async def test_required_calls_always_parse(engine, parser, parallel):
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    fields = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": parallel}
    async with client_of(state_of(engine, parser)) as client:
        body = {**fields, "seed": 1, "temperature": 1.5}
        message, reason = message_of(await client.chat(**body))
        chunks = await client.stream_chat(**body)
    assert joined_message(chunks) == (message, reason)
    assert message.content == ""
    assert message.calls
    assert len(message.calls) == 1 or parallel
    # A random model may want more calls than its context holds: then the last one is cut.
    assert reason == "tool_calls" or (reason == "length" and parallel)
    for name, arguments in message.calls[: -1 if reason == "length" else None]:
        jsonschema.validate(json.loads(arguments), schemas[name])


@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "mistral", "json"])
async def test_strict_functions_leave_the_text_free(engine, parser):
    tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    fields = {"tools": tools, "temperature": 2, "seed": 3, "max_tokens": 100}
    async with client_of(state_of(engine, parser)) as client:
        message, reason = message_of(await client.chat(**fields))
        chunks = await client.stream_chat(**fields)
    assert joined_message(chunks) == (message, reason)
    assert message.content
    assert not message.calls


async def test_a_named_call_is_of_that_function(engine):
    choice = {"type": "function", "function": {"name": "flag"}}
    async with client_of(state_of(engine)) as client:
        message, reason = message_of(await client.chat(tools=TOOLS, tool_choice=choice))
    ((name, arguments),) = message.calls
    assert name == "flag"
    assert json.loads(arguments)["on"] in (True, False)
    assert reason == "stop"


async def test_tools_and_a_form_leave_calls_or_the_form(engine):
    async with client_of(state_of(engine)) as client:
        for seed in range(3):
            fields = {"tools": TOOLS, "response_format": FORMAT, "seed": seed, "temperature": 2}
            message, _ = message_of(await client.chat(**fields))
            if message.calls:
                assert message.content == ""
            else:
                jsonschema.validate(json.loads(message.content), PERSON)


async def test_a_form_comes_behind_the_reasoning(engine):
    template = TOOL_TEMPLATE.replace("assistant:", "assistant:<think>\n")
    form = {"structured_outputs": {"choice": ["yes", "no"]}}
    bias = {str(ord("<")): 100, **{str(byte): 10 for byte in b"/think>"}}
    async with client_of(state_of(engine, template=template)) as client:
        answer = await client.chat(max_tokens=150, logit_bias=bias, seed=1, **form)
    message, reason = message_of(answer)
    assert message.content in (("yes", "no") if reason == "stop" else ("", "y", "ye", "n"))


IMPOSSIBLE: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": []}}}},
     "response_format.json_schema.schema", "Unsatisfiable"),
    ({"guided_json": {"type": "integer", "minimum": 5, "maximum": 2}}, "guided_json",
     "minimum (5) is greater than maximum (2)"),
    ({"guided_json": {"$ref": "#"}}, "guided_json", "no text satisfies it"),
    ({"guided_json": {"not": {}}}, "guided_json", 'Unimplemented keys: ["not"]'),
    ({"guided_json": "{"}, "guided_json", "not JSON"),
    ({"guided_json": "[1]"}, "guided_json", "not a JSON schema"),
    ({"guided_regex": "("}, "guided_regex", "unclosed group"),
    ({"guided_regex": "(?=a)b"}, "guided_regex", "look-ahead"),
    ({"guided_grammar": "start: nope"}, "guided_grammar", "nope"),
    ({"structured_outputs": {"grammar": "root ::= (("}}, "structured_outputs.grammar", "grammar"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "just one"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "only one of"),
    ({"guided_choice": []}, "guided_choice", "at least 1"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "structured output"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "words"), IMPOSSIBLE)
async def test_an_impossible_form_is_a_400_with_its_cause(fields, param, words):
    async with client_of(state_of(EchoEngine(always("x")))) as client:
        body = {"model": "echo", "messages": [{"role": "user", "content": "x"}], **fields}
        error = await client.refused("/v1/chat/completions", body)
    assert error["param"] == param
    assert words in error["message"]


async def test_an_abusive_schema_is_a_400():
    deep: dict[str, Any] = {}
    for _ in range(60):
        deep = {"items": deep}
    long = {"enum": [f"value {at}" for at in range(50_000)]}
    async with client_of(state_of(EchoEngine(always("x")))) as client:
        for schema, words in ((deep, "nested deeper than 32"), (long, "more than 262144")):
            body = {"model": "echo", "prompt": "x", "guided_json": schema}
            error = await client.refused("/v1/completions", body)
            assert words in error["message"]


async def test_the_deadline_of_a_grammar_is_not_for_the_vocabulary():
    def slow_to_load() -> Tokenizer:
        time.sleep(0.6)
        return make_tokenizer()

    checks = GrammarChecks(GrammarCompiler(slow_to_load), limit_s=0.5)
    await checks.check(GrammarCheck(regex_grammar("a", "regex").text(), "regex"))


async def test_a_grammar_that_compiles_for_too_long_is_a_400_and_a_queue_of_them_a_503():
    class Slow(GrammarCompiler):
        def check(self, grammar: str, param: str) -> None:
            time.sleep(0.4)

    checks = GrammarChecks(Slow(make_tokenizer), limit_s=0.05)
    asked = GrammarCheck(regex_grammar("a", "regex").text(), "regex")
    errors = []
    for _ in range(3):
        with pytest.raises(ApiError) as caught:
            await checks.check(asked)
        errors.append((caught.value.status, caught.value.param))
    assert errors == [(400, "regex"), (400, "regex"), (503, None)]

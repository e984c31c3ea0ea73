"""Wrong requests get a 4xx whose body names the field; none may become a 500."""

import json
from typing import Any
from unittest.mock import Mock, patch

import pytest
from tests.engine.byte_tokenizer import make_tokenizer
from tests.engine.echo_engine import EchoEngine, EchoStream, always
from tests.engine.server_client import chat_body, client_of, make_state, serving

from octavo_engine.messages import EngineRequest
from octavo_engine.server.errors import MAX_MESSAGE_CHARS

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "echo", "prompt": "hi", **fields}


WRONG: list[tuple[str, Any, str | None, str]] = [
    (CHAT, b"{", None, "not valid JSON"),
    (CHAT, [], None, "should be an object"),
    (CHAT, {"model": "echo"}, "messages", "Missing required parameter"),
    (CHAT, {"messages": []}, "model", "Missing required parameter"),
    (CHAT, {"model": "echo", "messages": []}, "messages", "at least 1 item"),
    (CHAT, chat_body(colour="red"), "colour", "Unrecognized request argument"),
    (CHAT, chat_body(temperature="hot"), "temperature", 'got "hot"'),
    (CHAT, chat_body(temperature=2.5), "temperature", "less than or equal to 2"),
    (CHAT, chat_body(top_p=0), "top_p", "greater than 0"),
    (CHAT, chat_body(n=0), "n", "greater than or equal to 1"),
    (CHAT, chat_body(max_tokens=0), "max_tokens", "greater than or equal to 1"),
    (CHAT, chat_body(max_tokens=1.5), "max_tokens", "valid integer"),
    (CHAT, chat_body(max_tokens=10_000), "max_tokens", "context of 200"),
    (CHAT, chat_body(max_completion_tokens=10_000), "max_completion_tokens", "context of 200"),
    (CHAT, chat_body(stop=["a", ""]), "stop.1", "at least 1 character"),
    (CHAT, chat_body(stop=[str(i) for i in range(40)]), "stop", "at most 32 items"),
    (CHAT, chat_body(logit_bias={"5": 101}), "logit_bias.5", "less than or equal to 100"),
    (CHAT, chat_body(logit_bias={"five": 1}), "logit_bias", "'five' is not a token id"),
    (CHAT, chat_body(logit_bias={"100000": 1}), "logit_bias", "100000"),
    (CHAT, chat_body(stop_token_ids=[100_000]), "stop_token_ids", "100000"),
    (CHAT, chat_body(stop_token_ids=[-1]), "stop_token_ids.0", "greater than or equal to 0"),
    (CHAT, chat_body(top_logprobs=2), "top_logprobs", "'top_logprobs' is only allowed"),
    (CHAT, chat_body(logprobs=True, top_logprobs=21), "top_logprobs", "less than or equal to 20"),
    (CHAT, chat_body(stream_options={"include_usage": True}), "stream_options", "only allowed"),
    (CHAT, chat_body(seed=2**63), "seed", "less than"),
    (CHAT, chat_body(min_tokens=50, max_tokens=4), "min_tokens", "min_tokens is 50"),
    (CHAT, chat_body(tools=[{"type": "function"}]), "tools.0.function", "Missing required"),
    (CHAT, chat_body(response_format={"type": "json"}), "response_format", "json_schema"),
    (
        CHAT,
        chat_body(response_format={"type": "json_schema", "json_schema": {"name": "x"}}),
        "response_format.json_schema.schema",
        "Missing required",
    ),
    (CHAT, chat_body(modalities=["text", "audio"]), "modalities", "not supported"),
    (
        CHAT,
        {"model": "echo", "messages": [{"role": "king", "content": "x"}]},
        "messages.0.role",
        'got "king"',
    ),
    (
        CHAT,
        {"model": "echo", "messages": [{"role": "user"}]},
        "messages.0.content",
        "needs 'content'",
    ),
    (
        CHAT,
        {"model": "echo", "messages": [{"role": "user", "content": [{"type": "speech"}]}]},
        "messages.0.content.0",
        "'type' should be one of 'text', 'refusal'",
    ),
    (CHAT, chat_body(response_format={}), "response_format.type", "Missing required"),
    (CHAT, chat_body(chat_template_kwargs={"self": 1}), "chat_template_kwargs", "'self'"),
    (CHAT, chat_body(guided_regex="a", guided_choice=["b"]), "guided_choice", "only one of"),
    (
        CHAT,
        {"model": "echo", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages.0.content",
        "content of type 'image_url' is not supported",
    ),
    (CHAT, chat_body("x" * 300), "messages", "context of 200 tokens"),
    (COMPLETIONS, {"model": "echo"}, "prompt", "Missing required parameter"),
    (COMPLETIONS, completion(prompt=""), "prompt", "empty"),
    (COMPLETIONS, completion(prompt=[]), "prompt", "empty"),
    (COMPLETIONS, completion(prompt=["a", ""]), "prompt.1", "prompt 1: the prompt has no tokens"),
    (COMPLETIONS, completion(prompt=["a", "a" * 300]), "prompt.1", "prompt 1: the prompt has 300"),
    (COMPLETIONS, completion(prompt=None), "prompt", "a list of token ids or a list of only one"),
    (COMPLETIONS, completion(prompt=[1, "a"]), "prompt", 'got [1, "a"]'),
    (COMPLETIONS, completion(prompt=[1.5]), "prompt", "got [1.5]"),
    (COMPLETIONS, completion(prompt=[True]), "prompt", "got [true]"),
    (COMPLETIONS, completion(prompt=[[1, None]]), "prompt.0.1", "got null"),
    (COMPLETIONS, completion(prompt=[[1], [-2]]), "prompt.1.0", "greater than or equal to 0"),
    (COMPLETIONS, completion(prompt=["a"] * 200), "prompt", "200 prompts"),
    (COMPLETIONS, completion(prompt=[65] * 200), "prompt", "200 tokens"),
    (COMPLETIONS, completion(prompt=["a"] * 100, n=20), "n", "2000 answers at once"),
    (COMPLETIONS, completion(best_of=3), "best_of", "'best_of' 3 is not supported by this server"),
    (CHAT, chat_body(store=True), "store", "'store' true is not supported by this server: leave it "
     "out or give false"),
    (COMPLETIONS, completion(suffix="end"), "suffix", "not supported"),
    (COMPLETIONS, completion(guided_json=3), "guided_json", "Invalid value"),
    (COMPLETIONS, completion(logprobs=True), "logprobs", "valid integer"),
    (COMPLETIONS, completion(prompt_logprobs=1, stream=True), "prompt_logprobs", "stream"),
    (COMPLETIONS, completion(cache_salt=""), "cache_salt", "at least 1 character"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param", "words"), WRONG)
async def test_wrong_request_is_a_400_that_names_the_field(
    path: str, body: Any, param: str | None, words: str
) -> None:
    engine = EchoEngine(always("x"))
    async with serving(engine) as client:
        error = await client.refused(path, body)
    assert error["param"] == param
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert engine.requests == []


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"content-type": "text/plain"}, "'content-type: application/json', got 'text/plain'"),
        ({"content-type": "application/x-www-form-urlencoded"}, "got 'application/x-www"),
        ({}, "got ''"),
        (
            {"content-type": "application/json", "content-encoding": "gzip"},
            "'content-encoding: gzip' is not supported",
        ),
    ],
)
async def test_a_body_that_is_declared_to_be_no_json_is_a_415(
    headers: dict[str, str], words: str
) -> None:
    async with serving(EchoEngine(always("x"))) as client:
        content = json.dumps(completion())
        response = await client.http.post(COMPLETIONS, content=content, headers=headers)
    assert response.status_code == 415
    assert words in response.json()["error"]["message"]


async def test_json_may_be_declared_with_a_charset() -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8", "content-encoding": "identity"}
    async with serving(EchoEngine(always("x"))) as client:
        content = json.dumps(completion())
        response = await client.http.post(COMPLETIONS, content=content, headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "field", ["tools", "response_format", "logit_bias", "stop", "seed", "user"]
)
async def test_null_is_the_same_as_leaving_a_field_out(field: str) -> None:
    async with serving(EchoEngine(always("x"))) as client:
        await client.chat(**{field: None})


async def test_error_carries_the_clients_request_id() -> None:
    async with serving(EchoEngine(always("x"))) as client:
        response = await client.http.post(COMPLETIONS, json={}, headers={"X-Request-Id": "t-1"})
    assert response.status_code == 400
    assert response.headers["x-request-id"] == "t-1"


async def test_prompt_over_the_context_names_both_numbers() -> None:
    async with serving(EchoEngine(always("x"))) as client:
        error = await client.refused(COMPLETIONS, completion(prompt=[65] * 250))
    assert error["code"] == "context_length_exceeded"
    assert "250" in error["message"]
    assert "200" in error["message"]


async def test_huge_text_is_refused_before_it_is_tokenised() -> None:
    async with serving(EchoEngine(always("x"))) as client:
        error = await client.refused(COMPLETIONS, completion(prompt="a " * 100_000))
    assert "200000 characters" in error["message"]


async def test_unknown_model_is_a_404() -> None:
    async with serving(EchoEngine(always("x"))) as client:
        error = await client.refused(COMPLETIONS, completion(model="gpt-9"), status=404)
    assert error["code"] == "model_not_found"
    assert "gpt-9" in error["message"]


async def test_unknown_path_has_the_error_form() -> None:
    async with serving(EchoEngine(always("x"))) as client:
        error = await client.refused("/v1/nonsense", {}, status=404)
    assert "/v1/nonsense" in error["message"]
    assert error["code"] == "unknown_url"


async def test_wrong_method_has_the_error_form() -> None:
    async with serving(EchoEngine(always("x"))) as client:
        response = await client.http.get(COMPLETIONS)
    assert response.status_code == 405
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "method_not_supported")


async def test_body_over_the_limit_is_a_413() -> None:
    async with serving(EchoEngine(always("x")), max_body_mib=0.001) as client:
        error = await client.refused(COMPLETIONS, completion(prompt="a" * 2000), status=413)
    assert "1048" in error["message"]


async def test_error_message_stays_small_whatever_was_sent() -> None:
    async with serving(EchoEngine(always("x"))) as client:
        error = await client.refused(CHAT, chat_body(**{"y" * 50_000: 1}))
    assert len(error["message"]) <= MAX_MESSAGE_CHARS


async def test_full_queue_is_a_429_with_retry_after() -> None:
    engine = EchoEngine(always("x"))
    engine.is_queue_full = True
    async with serving(engine) as client:
        response = await client.http.post(COMPLETIONS, json=completion())
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) > 0
    assert response.json()["error"]["code"] == "queue_full"


async def test_one_of_several_prompts_too_long_submits_none() -> None:
    engine = EchoEngine(always("x"))
    async with serving(engine) as client:
        error = await client.refused(
            COMPLETIONS, completion(prompt=["ok", "a" * 190], max_tokens=15)
        )
    assert "max_tokens" in error["message"]
    assert engine.requests == []


class RoomForOne(EchoEngine):
    def submit(self, request: EngineRequest) -> EchoStream:
        stream = super().submit(request)
        self.is_queue_full = True
        return stream


async def test_one_of_several_prompts_refused_leaves_none_running() -> None:
    engine = RoomForOne(always("x"))
    async with serving(engine) as client:
        error = await client.refused(COMPLETIONS, completion(prompt=["ok", "no"]), status=429)
    assert error["code"] == "queue_full"
    assert engine.aborted == [request.request_id for request in engine.requests]
    assert len(engine.requests) == 1


async def test_engine_failure_of_a_request_is_a_500_with_its_sentence() -> None:
    engine = EchoEngine(always("x"))
    engine.failure = "the logits were not finite"
    async with serving(engine) as client:
        error = await client.refused(COMPLETIONS, completion(), status=500)
    assert error["message"] == "the logits were not finite"
    assert error["type"] == "server_error"


async def test_engine_failure_in_a_stream_is_an_error_event() -> None:
    engine = EchoEngine(always("x"))
    engine.failure = "the logits were not finite"
    async with serving(engine) as client:
        chunks = await client.stream_complete()
    assert chunks[-1]["error"]["message"] == "the logits were not finite"


async def test_text_that_cannot_be_made_is_told_whole_and_streamed_and_its_work_ends() -> None:
    tokenizer = make_tokenizer()
    broken = Mock(push=Mock(side_effect=UnicodeError("secret")))
    engine = EchoEngine(always("hello"))
    async with serving(engine, tokenizer) as client:
        with patch.object(tokenizer, "detokenizer", return_value=broken):
            answer = await client.refused(COMPLETIONS, completion(), status=500)
            chunks = await client.stream_complete()
            events = await client.stream_response({"model": "echo", "input": "hi"})
    assert answer == chunks[-1]["error"]
    assert (answer["message"], answer["type"]) == ("internal error", "server_error")
    assert events[-1]["response"]["error"]["message"] == "internal error"
    assert engine.aborted == [request.request_id for request in engine.requests]


async def test_dead_engine_is_a_503() -> None:
    engine = EchoEngine(always("x"))
    engine.death = "step 7 raised"
    async with serving(engine) as client:
        error = await client.refused(COMPLETIONS, completion(), status=503)
    assert error["code"] == "engine_dead"


async def test_request_while_loading_is_a_503_with_retry_after() -> None:
    async with client_of(make_state(None)) as client:
        response = await client.http.post(COMPLETIONS, json=completion())
    assert response.status_code == 503
    assert "retry-after" in response.headers

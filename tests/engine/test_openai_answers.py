"""What the two endpoints answer, whole and streamed, over an engine with scripted tokens."""

from typing import Any

import pytest
from tests.engine.byte_tokenizer import END_ID, EOS_ID, START_ID, ids_of, make_tokenizer
from tests.engine.echo_engine import EchoEngine, always
from tests.engine.server_client import serving

from octavo_engine.text.generation_config import GenerationDefaults


async def test_chat_answer_has_openais_form() -> None:
    async with serving(EchoEngine(always("Hello."))) as client:
        answer = await client.chat()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "echo"
    assert answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello.", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert answer["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 6,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


async def test_completion_answer_has_openais_form() -> None:
    async with serving(EchoEngine(always("abc"))) as client:
        answer = await client.complete("hello")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "abc", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]


async def test_completion_stops_at_16_tokens_by_default() -> None:
    async with serving(EchoEngine(always("x" * 50))) as client:
        answer = await client.complete()
    assert answer["choices"][0]["text"] == "x" * 16
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_chat_may_fill_the_context_by_default() -> None:
    async with serving(EchoEngine(always("x" * 500), max_model_len=100)) as client:
        answer = await client.chat()
    assert answer["usage"]["total_tokens"] == 100


@pytest.mark.parametrize("limits", [{"max_tokens": 4}, {"max_completion_tokens": 4},
                                    {"max_tokens": 9, "max_completion_tokens": 4}])  # fmt: skip
async def test_the_newer_name_of_the_limit_wins(limits: dict[str, int]) -> None:
    async with serving(EchoEngine(always("x" * 50))) as client:
        answer = await client.chat(**limits)
    assert answer["usage"]["completion_tokens"] == 4


async def test_stream_has_role_deltas_finish_usage_and_done() -> None:
    async with serving(EchoEngine(always("ab"))) as client:
        chunks = await client.stream_chat(stream_options={"include_usage": True})
    assert [chunk["object"] for chunk in chunks] == ["chat.completion.chunk"] * len(chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None, None, "stop"]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None, None, None]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 2


async def test_stream_without_usage_has_no_usage_field() -> None:
    async with serving(EchoEngine(always("ab"))) as client:
        chunks = await client.stream_chat()
    assert all("usage" not in chunk for chunk in chunks)


async def test_usage_can_come_with_every_chunk() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serving(EchoEngine(always("ab"))) as client:
        chunks = await client.stream_complete(stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 2]


async def test_stop_string_ends_the_answer_and_is_named() -> None:
    engine = EchoEngine(always("one two three"))
    async with serving(engine) as client:
        answer = await client.complete(stop=["two"], max_tokens=50)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("one ", "stop")
    assert choice["stop_reason"] == "two"
    assert answer["usage"]["completion_tokens"] == 7
    assert engine.finished == [(engine.requests[0].request_id, 0, "two")]


async def test_tokens_after_a_stop_string_in_one_step_do_not_count() -> None:
    engine = EchoEngine(always("abSTOPcdef"), tokens_per_step=10)
    async with serving(engine) as client:
        answer = await client.complete(stop="STOP", max_tokens=50)
    assert answer["choices"][0]["text"] == "ab"
    assert answer["usage"]["completion_tokens"] == 6


async def test_stop_string_does_not_fire_before_min_tokens() -> None:
    async with serving(EchoEngine(always("a.b.c"))) as client:
        answer = await client.complete(stop=".", min_tokens=2)
    assert answer["choices"][0]["text"] == "a.b"


async def test_part_of_a_stop_string_is_never_streamed() -> None:
    async with serving(EchoEngine(always("ab</end>cd"))) as client:
        chunks = await client.stream_complete(stop="</end>")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ab"
    assert all("<" not in chunk["choices"][0]["text"] for chunk in chunks)


async def test_characters_are_never_cut_in_a_stream() -> None:
    async with serving(EchoEngine(always("é🎉"))) as client:
        chunks = await client.stream_complete()
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert [text for text in texts if text] == ["é", "🎉"]


async def test_end_token_has_no_text() -> None:
    ids = [*ids_of("ok"), EOS_ID, *ids_of("more")]
    async with serving(EchoEngine(lambda request, index: ids)) as client:
        answer = await client.complete(skip_special_tokens=False)
    assert answer["choices"][0]["text"] == "ok"
    assert answer["usage"]["completion_tokens"] == 3


async def test_end_token_is_text_when_ignored_and_specials_are_wanted() -> None:
    ids = [*ids_of("a"), EOS_ID, *ids_of("b")]
    async with serving(EchoEngine(lambda request, index: ids)) as client:
        answer = await client.complete(ignore_eos=True, skip_special_tokens=False)
    assert answer["choices"][0]["text"] == "a<|eos|>b"


async def test_stop_token_is_named_and_left_out() -> None:
    async with serving(EchoEngine(always("abc"))) as client:
        answer = await client.complete(stop_token_ids=[ord("b")])
    assert answer["choices"][0]["text"] == "a"
    assert answer["choices"][0]["stop_reason"] == ord("b")


async def test_several_prompts_with_several_answers_are_numbered_prompt_by_prompt() -> None:
    engine = EchoEngine(
        lambda request, index: ids_of(f"{bytes(request.prompt_token_ids).decode()}{index}")
    )
    async with serving(engine) as client:
        answer = await client.complete(["p", "q"], n=2)
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [
        (0, "p0"),
        (1, "p1"),
        (2, "q0"),
        (3, "q1"),
    ]
    assert answer["usage"]["prompt_tokens"] == 2


async def test_prompts_may_be_token_ids() -> None:
    engine = EchoEngine(always("x"))
    async with serving(engine) as client:
        await client.complete([65, 66])
        await client.complete([[67], [68, 69]])
    assert [request.prompt_token_ids for request in engine.requests] == [[65, 66], [67], [68, 69]]


async def test_echo_puts_the_prompt_in_front() -> None:
    async with serving(EchoEngine(always("!"))) as client:
        answer = await client.complete("hey", echo=True)
        chunks = await client.stream_complete("hey", echo=True)
    assert answer["choices"][0]["text"] == "hey!"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hey!"


async def test_echo_with_logprobs_covers_the_prompt() -> None:
    async with serving(EchoEngine(always("!"))) as client:
        answer = await client.complete("hey", echo=True, logprobs=1)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["h", "e", "y", "!"]
    assert logprobs["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    assert logprobs["top_logprobs"][1] == {"f": -0.25, "e": -0.5}


async def test_no_tokens_asked_for_scores_the_prompt() -> None:
    """As lm-evaluation-harness asks for it."""
    async with serving(EchoEngine(always("!"))) as client:
        fields = {"echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0}
        answer = await client.complete(["hey", "you"], **fields)
    first, second = answer["choices"]
    assert (first["text"], second["text"]) == ("hey", "you")
    assert first["finish_reason"] == "length"
    assert first["logprobs"] == {
        "tokens": ["h", "e", "y"],
        "token_logprobs": [None, -0.5, -0.5],
        "top_logprobs": [None, {"f": -0.25, "e": -0.5}, {"z": -0.25, "y": -0.5}],
        "text_offset": [0, 1, 2],
    }
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (6, 0, 6)


async def test_no_tokens_asked_for_is_an_empty_text_or_the_echo_whole_and_streamed() -> None:
    async with serving(EchoEngine(always("!"))) as client:
        for echo, text in ((False, ""), (True, "hey")):
            answer = await client.complete("hey", max_tokens=0, echo=echo, n=2)
            options = {"stream_options": {"include_usage": True}}
            chunks = await client.stream_complete("hey", max_tokens=0, echo=echo, n=2, **options)
            assert [choice["text"] for choice in answer["choices"]] == [text] * 2
            pieces = [choice for chunk in chunks for choice in chunk["choices"]]
            assert sorted(piece["index"] for piece in pieces) == [0, 1]
            assert {(piece["text"], piece["finish_reason"]) for piece in pieces} == {
                (text, "length")
            }
            assert chunks[-1]["usage"]["completion_tokens"] == 0


async def test_a_prompt_may_fill_the_context_where_nothing_follows_it() -> None:
    async with serving(EchoEngine(always("!"), max_model_len=20)) as client:
        assert await client.complete("x" * 20, max_tokens=0)
        for prompt, max_tokens in (("x" * 20, 1), ("x" * 21, 0)):
            body = {"model": "echo", "prompt": prompt, "max_tokens": max_tokens}
            error = await client.refused("/v1/completions", body)
            assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")


PROMPT = "<|start|>hé<|end|>"


@pytest.mark.parametrize(
    ("prompt", "fields", "text", "offsets"),
    [
        (PROMPT, {}, PROMPT, [0, 9, 10, 10, 11]),
        ([START_ID, *ids_of("hé"), END_ID], {}, "hé", [0, 0, 1, 1, 2]),
        ([START_ID, *ids_of("hé"), END_ID], {"skip_special_tokens": False}, PROMPT,
         [0, 9, 10, 10, 11]),
    ],
)  # fmt: skip
async def test_offsets_are_those_in_the_echo(prompt, fields, text, offsets) -> None:
    """A text comes back as it was sent; special tokens of ids are skipped, as in any answer."""
    async with serving(EchoEngine(always("!"))) as client:
        answer = await client.complete(prompt, echo=True, logprobs=0, max_tokens=1, **fields)
    (choice,) = answer["choices"]
    assert choice["text"] == text + "!"
    assert choice["logprobs"]["text_offset"] == [*offsets, len(text)]


async def test_chat_logprobs_have_bytes_and_alternatives() -> None:
    async with serving(EchoEngine(always("é"))) as client:
        answer = await client.chat(logprobs=True, top_logprobs=1)
    first, second = answer["choices"][0]["logprobs"]["content"]
    assert (first["token"], first["bytes"]) == ("bytes:\\xc3", [0xC3])
    assert second["bytes"] == [0xA9]
    assert first["top_logprobs"] == [{"token": "bytes:\\xc4", "logprob": -0.25, "bytes": [0xC4]}]


async def test_every_counted_token_has_one_logprob_entry() -> None:
    ids = [*ids_of("ok"), END_ID, EOS_ID]
    async with serving(EchoEngine(lambda request, index: ids)) as client:
        answer = await client.chat(logprobs=True)
        chunks = await client.stream_chat(logprobs=True)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"] == 4
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for part in parts if part for entry in part["content"]] == entries


async def test_what_the_client_leaves_out_the_model_decides() -> None:
    defaults = GenerationDefaults(temperature=0.3, top_k=7, top_p=0.9, max_new_tokens=5)
    engine = EchoEngine(always("x" * 50))
    async with serving(engine, make_tokenizer(defaults)) as client:
        await client.chat()
        await client.chat(temperature=0, top_k=-1, max_tokens=20)
    first, second = (request.params for request in engine.requests)
    assert (first.temperature, first.top_k, first.top_p, first.max_tokens) == (0.3, 7, 0.9, 5)
    assert (second.temperature, second.top_k, second.top_p, second.max_tokens) == (0, 0, 0.9, 20)


@pytest.mark.parametrize(
    ("field", "value", "attribute", "expected"),
    [
        ("seed", 5, "seed", 5),
        ("min_p", 0.1, "min_p", 0.1),
        ("repetition_penalty", 1.2, "repetition_penalty", 1.2),
        ("presence_penalty", -1, "presence_penalty", -1),
        ("frequency_penalty", 0.5, "frequency_penalty", 0.5),
        ("logit_bias", {"65": -100}, "logit_bias", {65: -100.0}),
        ("allowed_token_ids", [65, 66], "allowed_token_ids", [65, 66]),
        ("bad_words", ["ab"], "bad_words_token_ids", [[97, 98], [32, 97, 98]]),
        ("stop_token_ids", [10], "stop_token_ids", [10]),
        ("ignore_eos", True, "ignore_eos", True),
        ("min_tokens", 2, "min_tokens", 2),
    ],
)
async def test_sampling_field_reaches_the_engine(
    field: str, value: Any, attribute: str, expected: Any
) -> None:
    engine = EchoEngine(always("abc"))
    async with serving(engine) as client:
        await client.complete(**{field: value})
    assert getattr(engine.requests[0].params, attribute) == expected


async def test_priority_and_cache_salt_reach_the_engine() -> None:
    engine = EchoEngine(always("abc"))
    async with serving(engine) as client:
        await client.complete(priority=-3, cache_salt="tenant")
    assert (engine.requests[0].priority, engine.requests[0].cache_salt) == (-3, "tenant")


async def test_request_id_of_the_client_is_kept() -> None:
    async with serving(EchoEngine(always("a"))) as client:
        response = await client.http.post(
            "/v1/completions",
            json={"model": "echo", "prompt": "a"},
            headers={"X-Request-Id": "trace-7"},
        )
    assert response.headers["x-request-id"] == "trace-7"
    assert response.json()["id"] == "cmpl-trace-7"


async def test_token_ids_come_along_when_asked_for() -> None:
    async with serving(EchoEngine(always("ab"))) as client:
        answer = await client.complete("hi", return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == ids_of("ab")
    assert answer["choices"][0]["prompt_token_ids"] == ids_of("hi")


async def test_every_served_name_answers() -> None:
    async with serving(EchoEngine(always("a"))) as client:
        answer = await client.complete(model="alias")
    assert answer["model"] == "alias"

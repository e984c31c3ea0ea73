"""What texts of models mean, whatever way they are cut into pieces."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.parser_cases import (
    HERMES_CASES,
    JSON_CASES,
    MISTRAL_CASES,
    NAMES,
    OPEN_REASONING_CASES,
    PARIS,
    REASONING_CASES,
    Case,
    merged,
)

from octavo_engine.parsers.reader import MessageReader
from octavo_engine.parsers.reasoning import THINK
from octavo_engine.parsers.tool_format import (
    HERMES,
    JSON,
    LLAMA3_JSON,
    MISTRAL,
    ToolFormat,
    ToolRules,
    guess_tool_format,
)

TOOL_CASES = [
    *[(HERMES, case) for case in HERMES_CASES],
    *[(form, case) for form in (JSON, LLAMA3_JSON) for case in JSON_CASES],
    *[(MISTRAL, case) for case in MISTRAL_CASES],
]
ALL_FORMATS = [HERMES, LLAMA3_JSON, MISTRAL, JSON]


def tool_reader(form: ToolFormat, *, only_one: bool = False, **fields: object) -> MessageReader:
    rules = ToolRules(NAMES, only_one=only_one)
    return MessageReader(tools=form, rules=rules, **fields)  # type: ignore[arg-type]  # fields of several types


def read(reader: MessageReader, pieces: list[str]) -> Case:
    deltas = []
    for piece in pieces:
        reader.push(piece)
        deltas.append(reader.take())
    reader.finish()
    deltas.append(reader.take())
    case = merged(deltas)
    assert reader.has_calls == (bool(case.calls) and not reader.has_open_call)
    return replace(case, is_cut=reader.has_open_call)


def cut(text: str, points: list[int]) -> list[str]:
    edges = [0, *sorted(min(point, len(text)) for point in points), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize(("form", "case"), TOOL_CASES)
def test_calls_are_found_in_whole_text_and_character_by_character(form, case):
    expected = replace(case, text="")
    assert read(tool_reader(form), [case.text]) == expected
    assert read(tool_reader(form), list(case.text)) == expected


@pytest.mark.parametrize(("form", "case"), TOOL_CASES)
def test_one_cut_anywhere_changes_nothing(form, case):
    for point in range(len(case.text)):
        pieces = [case.text[:point], case.text[point:]]
        assert read(tool_reader(form), pieces) == replace(case, text="")


@pytest.mark.parametrize("case", REASONING_CASES)
def test_reasoning_is_split_off(case):
    for pieces in ([case.text], list(case.text)):
        assert read(MessageReader(reasoning=THINK), pieces) == replace(case, text="")


@pytest.mark.parametrize("case", OPEN_REASONING_CASES)
def test_reasoning_that_the_prompt_opened_is_split_off(case):
    for pieces in ([case.text], list(case.text)):
        reader = MessageReader(reasoning=THINK, is_reasoning_open=True)
        assert read(reader, pieces) == replace(case, text="")


FRAGMENTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```json", "```",
        '{"name": "weather", "arguments": ' + PARIS + "}", '{"name": "weather", "parameters": {',
        '{"name": "', "weather", '"}', "{", "}", "[", "]", ",", ";", '"', "\\", ":", " ", "\n\n",
        "text", "é…", '"arguments"', '"name"', "null", "1", "<think>", "</think>", "<", "[",
    ]
)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(
    form=st.sampled_from(ALL_FORMATS),
    fragments=st.lists(FRAGMENTS, max_size=14),
    points=st.lists(st.integers(0, 200), max_size=12),
    only_one=st.booleans(),
    has_reasoning=st.booleans(),
    is_open=st.booleans(),
)
def test_no_text_means_something_else_in_pieces(
    form, fragments, points, only_one, has_reasoning, is_open
):
    text = "".join(fragments)

    def reader() -> MessageReader:
        reasoning = THINK if has_reasoning else None
        return tool_reader(form, only_one=only_one, reasoning=reasoning, is_reasoning_open=is_open)

    whole = read(reader(), [text])
    assert read(reader(), cut(text, points)) == whole
    assert read(reader(), list(text)) == whole


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40), form=st.sampled_from(ALL_FORMATS))
def test_text_without_calls_comes_through_unchanged(text, form):
    message = read(tool_reader(form), list(text))
    if not message.calls:
        assert message.content == text


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (
            HERMES,
            '<tool_call>{"name": "time", "arguments": {}}</tool_call><tool_call>{"name": "x"}',
        ),
        (JSON, '[{"name": "time", "arguments": {}}, {"name": "noop"}]'),
        (LLAMA3_JSON, '{"name": "time", "parameters": {}}; {"name": "noop"}'),
        (MISTRAL, '[TOOL_CALLS][{"name": "time", "arguments": {}}, {"name": "noop"}]'),
        (MISTRAL, "[TOOL_CALLS]time{}[TOOL_CALLS]noop{}"),
    ],
)
def test_the_only_call_that_may_come_ends_the_message(form, text):
    reader = tool_reader(form, only_one=True)
    over_at = []
    for idx, char in enumerate(text):
        reader.push(char)
        if reader.is_over:
            over_at.append(idx)
    assert merged([reader.take()]).calls == [("time", "{}")]
    assert over_at
    assert text[: over_at[0] + 1].count("{}") == 1


def test_arguments_come_before_the_call_is_complete():
    reader = tool_reader(HERMES)
    reader.push('<tool_call>{"name": "weather", "arguments": {"city": "Pa')
    (call,) = reader.take().tool_calls
    assert (call.name, call.arguments) == ("weather", '{"city": "Pa')
    reader.push('ris"}')
    (call,) = reader.take().tool_calls
    assert (call.index, call.name, call.arguments) == (0, None, 'ris"}')


def test_json_that_is_no_call_is_not_held_back():
    reader = tool_reader(JSON)
    reader.push('{"answer": "')
    assert reader.take().content == '{"answer": "'


def test_a_call_with_a_value_of_too_many_levels_is_read_on():
    reader = tool_reader(HERMES)
    deep = "[" * 50_000 + "]" * 50_000
    message = read(reader, [f'<tool_call>{{"id": {deep}, "name": "time", "arguments": {PARIS}}}'])
    assert message.calls == [("time", PARIS)]


def test_ids_of_mistral_are_nine_letters_and_digits():
    reader = tool_reader(MISTRAL)
    reader.push("[TOOL_CALLS]time{}")
    (call,) = reader.take().tool_calls
    assert call.id is not None
    assert len(call.id) == 9
    assert call.id.isalnum()


def test_the_format_is_guessed_from_the_template():
    assert guess_tool_format("{{ '<tool_call>' }}") is HERMES
    assert guess_tool_format("'[TOOL_CALLS]'") is MISTRAL
    assert guess_tool_format("""'"parameters": '""") is LLAMA3_JSON
    assert guess_tool_format("{{ messages }}") is JSON

"""Texts that models write, with the message that each means; for tests of parsers and server."""

from dataclasses import dataclass, field

from octavo_engine.parsers.message import MessageDelta


@dataclass(frozen=True)
class Case:
    text: str
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Name and arguments."""
    reasoning: str = ""
    is_cut: bool = False
    """The text ends in the arguments of the last call."""


NAMES = ("weather", "time", "noop")
PARIS = '{"city": "Paris"}'
TRICKY = '{"text": "a \\"}\\" </tool_call> [TOOL_CALLS] {", "n": [1, {"x": null}]}'

HERMES_CASES = [
    Case("Just text.\n", content="Just text.\n"),
    Case("", content=""),
    Case(
        f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>',
        calls=[("weather", PARIS)],
    ),
    Case(
        f'I look.\n\n<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>\n'
        f'<tool_call>{{"arguments": {TRICKY}, "name": "time"}}</tool_call>\nDone.',
        content="I look.Done.",
        calls=[("weather", PARIS), ("time", TRICKY)],
    ),
    Case('<tool_call>{"name": "noop"}</tool_call>', calls=[("noop", "{}")]),
    Case('<tool_call>{"name": "noop", "arguments": {}}', calls=[("noop", "{}")]),
    Case(
        '<tool_call>{"name": "noop", "arguments": "{\\"a\\": true}"}</tool_call>',
        calls=[("noop", '{"a": true}')],
    ),
    Case(
        '<tool_call>{"name": "noop", "arguments": {"a": fal',
        calls=[("noop", '{"a": fal')],
        is_cut=True,
    ),
    Case('<tool_call>{"name": "noop", ', calls=[("noop", "")], is_cut=True),
    Case('<tool_call>{"arguments": {}, "name": "noop"', calls=[("noop", "{}")]),
    Case(
        '<tool_call>{"name": "other", "arguments": {}}</tool_call> <tool_call>{"name": "noop"}',
        content='<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        calls=[("noop", "{}")],
    ),
    Case("<tool_call>not json</tool_call> x", content="<tool_call>not json</tool_call> x"),
    Case("<tool_call>{}</tool_call>", content="<tool_call>{}</tool_call>"),
    Case("a < b <tool and <tool_call", content="a < b <tool and <tool_call"),
    Case('<tool_call>{"other": 1}', content='<tool_call>{"other": 1}'),
    Case('<tool_call>\n{"na', content='<tool_call>\n{"na'),
    Case(
        f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}}}\n</tool_call>',
        calls=[("weather", PARIS)],
    ),
    Case(
        '<tool_call>{"name": "t\\u0069me", "arguments": {"é": "…"}}</tool_call>',
        calls=[("time", '{"é": "…"}')],
    ),
]
JSON_CASES = [
    Case("Just text.\n", content="Just text.\n"),
    Case("  ", content="  "),
    Case(f'{{"name": "weather", "parameters": {PARIS}}}', calls=[("weather", PARIS)]),
    Case(f'<|python_tag|>{{"name": "weather", "parameters": {PARIS}}}', calls=[("weather", PARIS)]),
    Case(
        f'{{"name": "weather", "parameters": {PARIS}}}; {{"name": "time", "parameters": {TRICKY}}}',
        calls=[("weather", PARIS), ("time", TRICKY)],
    ),
    Case(
        f'[{{"name": "weather", "arguments": {PARIS}}},\n '
        f'{{"arguments": {TRICKY}, "name": "time"}}]',
        calls=[("weather", PARIS), ("time", TRICKY)],
    ),
    Case(
        f'```json\n[{{"name": "weather", "arguments": {PARIS}}}]\n```', calls=[("weather", PARIS)]
    ),
    Case('{"name": "Bob", "age": 3}', content='{"name": "Bob", "age": 3}'),
    Case('{"answer": [1, 2]}\n', content='{"answer": [1, 2]}\n'),
    Case("[1, 2]", content="[1, 2]"),
    Case("```\ncode\n```", content="```\ncode\n```"),
    Case(
        f'{{"type": "function", "name": "time", "parameters": {PARIS}}} and more',
        content="and more",
        calls=[("time", PARIS)],
    ),
    Case('{"name": "weather", "parameters": {"ci', calls=[("weather", '{"ci')], is_cut=True),
    Case('{"name": "wea', content='{"name": "wea'),
    Case("<|python", content="<|python"),
]
MISTRAL_CASES = [
    Case("Just text.\n", content="Just text.\n"),
    Case(
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {PARIS}, "id": "abcdefghi"}}]',
        calls=[("weather", PARIS)],
    ),
    Case(
        f'Hm. [TOOL_CALLS][{{"name": "weather", "arguments": {PARIS}}}, '
        f'{{"name": "time", "arguments": {TRICKY}}}]',
        content="Hm.",
        calls=[("weather", PARIS), ("time", TRICKY)],
    ),
    Case(
        f"[TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]time{TRICKY}",
        calls=[("weather", PARIS), ("time", TRICKY)],
    ),
    Case(f"[TOOL_CALLS]time[CALL_ID]123456789[ARGS]{PARIS}", calls=[("time", PARIS)]),
    Case("[TOOL_CALLS]", content="[TOOL_CALLS]"),
    Case("[TOOL_CALLS] what?", content="[TOOL_CALLS] what?"),
    Case("[TOOL_CALLS][1]", content="[TOOL_CALLS][1]"),
    Case('[TOOL_CALLS][{"x": 1}]', content='[TOOL_CALLS][{"x": 1}]'),
    Case("[TOOL", content="[TOOL"),
    Case('[TOOL_CALLS]time{"a', calls=[("time", '{"a')], is_cut=True),
    Case('[TOOL_CALLS][{"name": "time", "arguments": [', calls=[("time", "[")], is_cut=True),
    Case('[TOOL_CALLS]other{"a": 1}', content='[TOOL_CALLS]other{"a": 1}'),
    Case(
        '[TOOL_CALLS][{"name": "other", "arguments": {}}]',
        content='[TOOL_CALLS][{"name": "other", "arguments": {}}]',
    ),
    Case(
        "[TOOL_CALLS]other{}[TOOL_CALLS]time{}",
        content="[TOOL_CALLS]other{}",
        calls=[("time", "{}")],
    ),
]
REASONING_CASES = [
    Case("<think>\nHm.\n\nYes.\n</think>\n\nHello.", content="Hello.", reasoning="Hm.\n\nYes."),
    Case("<think></think>Hello.", content="Hello."),
    Case("Hello <think>no</think>", content="Hello <think>no</think>"),
    Case("<think>cut off\n", reasoning="cut off\n"),
    Case("<thi", content="<thi"),
    Case("<think>a </thin </think>b\n", content="b\n", reasoning="a </thin "),
    Case(" \n<think>a</think>", reasoning="a"),
    Case("\n", content="\n"),
]
OPEN_REASONING_CASES = [
    Case("Hm.\nYes.\n</think>\n\nHello.", content="Hello.", reasoning="Hm.\nYes."),
    Case("<think>\nHm.</think>Hello.", content="Hello.", reasoning="Hm."),
    Case("</think>\nHello.", content="Hello."),
    Case("cut off", reasoning="cut off"),
    Case("<th", reasoning="<th"),
    Case("", content=""),
]


def merged(deltas: list[MessageDelta]) -> Case:
    """The message that deltas add up to, as a client joins them."""
    calls: dict[int, tuple[str, str]] = {}
    ids = set()
    for delta in deltas:
        for call in delta.tool_calls:
            if call.index not in calls:
                assert call.name is not None
                assert call.id is not None
                ids.add(call.id)
                assert call.index == len(calls)
                calls[call.index] = (call.name, "")
            else:
                assert call.name is None
                assert call.id is None
            name, arguments = calls[call.index]
            calls[call.index] = (name, arguments + call.arguments)
    assert len(ids) == len(calls)
    return Case(
        text="",
        content="".join(delta.content for delta in deltas),
        calls=list(calls.values()),
        reasoning="".join(delta.reasoning for delta in deltas),
    )

"""How this server's model writes tool calls and reasoning: by option or by its template."""

from dataclasses import dataclass

from octavo_engine.errors import ConfigError
from octavo_engine.parsers.reasoning import BRACKET_THINK, REASONING_FORMATS, THINK, ReasoningFormat
from octavo_engine.parsers.tool_format import TOOL_FORMATS, ToolFormat, guess_tool_format
from octavo_engine.text.tokenizer import Tokenizer

AUTO, NONE = "auto", "none"
TOOL_PARSER_NAMES = (AUTO, NONE, *TOOL_FORMATS)
REASONING_PARSER_NAMES = (AUTO, NONE, *REASONING_FORMATS)


@dataclass(frozen=True)
class ChatFormats:
    tools: ToolFormat | None
    """None: calls are not looked for."""
    reasoning: ReasoningFormat | None
    """None: reasoning is content."""


def choose_formats(tool_parser: str, reasoning_parser: str, tokenizer: Tokenizer) -> ChatFormats:
    """Raises `ConfigError` for names that are none."""
    _refuse_unknown("tool_parser", tool_parser, TOOL_PARSER_NAMES)
    _refuse_unknown("reasoning_parser", reasoning_parser, REASONING_PARSER_NAMES)
    template = str(tokenizer.hf_tokenizer.chat_template or "")
    tools = TOOL_FORMATS.get(tool_parser)
    if tool_parser == AUTO:
        tools = guess_tool_format(template)
    reasoning = REASONING_FORMATS.get(reasoning_parser)
    if reasoning_parser == AUTO:
        known = [form for form in (THINK, BRACKET_THINK) if form.end in template]
        reasoning = known[0] if known else None
    return ChatFormats(tools, reasoning)


def _refuse_unknown(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{option} is {value!r}, not one of {', '.join(known)}")

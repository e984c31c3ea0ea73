"""Splits reasoning from the answer: what stands between a `<think>` and its `</think>`.

Whether the text begins inside is the prompt's word: templates may have opened, or closed, it there.
New lines next to the markers belong to neither side.
"""

from dataclasses import dataclass

from octavo_engine.parsers.message import MessageWriter
from octavo_engine.parsers.text_machine import TextMachine, num_safe_chars


@dataclass(frozen=True)
class ReasoningFormat:
    start: str
    end: str

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt ends inside of reasoning."""
        return prompt.rstrip().endswith(self.start)


THINK = ReasoningFormat("<think>", "</think>")
BRACKET_THINK = ReasoningFormat("[THINK]", "[/THINK]")
REASONING_FORMATS = {"think": THINK, "bracket-think": BRACKET_THINK}


class ReasoningSplitter(TextMachine):
    """Writes reasoning to `out` and passes the answer on to `answer`."""

    def __init__(
        self, form: ReasoningFormat, out: MessageWriter, answer: TextMachine, *, is_open: bool
    ) -> None:
        super().__init__()
        self._form = form
        self._out = out
        self._answer = answer
        self._state = self._opened if is_open else self._start
        self._has_content = False

    @property
    def is_reasoning(self) -> bool:
        return self._state in (self._opened, self._reason)

    def finish(self) -> None:
        super().finish()
        self._answer.finish()

    def _start(self) -> bool:
        """Models that open their reasoning themselves do it first of all."""
        stripped = self._buffer.lstrip()
        if not stripped and not self._is_final:
            return False
        opened = stripped.startswith(self._form.start)
        if not opened and self._form.start.startswith(stripped) and not self._is_final:
            return False
        if opened:
            self._buffer = stripped[len(self._form.start) :]
        self._state = self._reason if opened else self._pass_on
        return True

    def _opened(self) -> bool:
        """Some models repeat the marker that the prompt has written."""
        stripped = self._buffer.lstrip()
        if stripped.startswith(self._form.start):
            self._buffer = stripped[len(self._form.start) :]
        elif self._form.start.startswith(stripped) and not self._is_final:
            return False
        self._state = self._reason
        return True

    def _reason(self) -> bool:
        if not self._has_content:
            self._buffer = self._buffer.lstrip("\n")
        end = self._buffer.find(self._form.end)
        if end >= 0:
            self._out.reasoning(self._take(end).rstrip("\n"))
            self._take(len(self._form.end))
            self._state = self._tail
            return True
        if self._is_final:
            self._out.reasoning(self._take(len(self._buffer)))
            return False
        num_safe = num_safe_chars(self._buffer, [self._form.end])
        text = self._buffer[:num_safe].rstrip("\n")
        self._has_content = self._has_content or bool(text)
        self._out.reasoning(self._take(len(text)))
        return False

    def _tail(self) -> bool:
        self._buffer = self._buffer.lstrip("\n")
        if self._buffer:
            self._state = self._pass_on
        return bool(self._buffer)

    def _pass_on(self) -> bool:
        if self._buffer:
            self._answer.push(self._take(len(self._buffer)))
        return False

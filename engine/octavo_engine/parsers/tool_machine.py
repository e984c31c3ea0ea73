"""What the tool parsers share: content around calls, and the end after the only call."""

from octavo_engine.parsers.message import MessageWriter
from octavo_engine.parsers.text_machine import TextMachine, num_safe_chars


class ToolMachine(TextMachine):
    """Writes content and calls to `out`. White space between content and a call is dropped."""

    def __init__(self, out: MessageWriter, *, only_one: bool) -> None:
        """only_one: the text is over for us with the end of the first call."""
        super().__init__()
        self._out = out
        self._only_one = only_one
        self._held_space = ""
        """After content: goes out only when more content follows."""
        self._has_content = False
        """Since the last call."""
        self.is_over = False

    def push(self, text: str) -> None:
        if not self.is_over:
            super().push(text)

    def finish(self) -> None:
        if not self.is_over:
            super().finish()
            if self._out.num_calls == 0:
                self._out.content(self._held_space)

    def _note_call_end(self) -> bool:
        """Whether there is more to read."""
        self._held_space, self._has_content = "", False
        self.is_over = self._only_one
        return not self.is_over

    def _content_up_to(self, marker: str) -> bool:
        """Gives out content; whether the marker is now first in the buffer."""
        at = self._buffer.find(marker)
        if at >= 0:
            self._content(self._take(at))
            return True
        num_safe = len(self._buffer) if self._is_final else num_safe_chars(self._buffer, [marker])
        self._content(self._take(num_safe))
        return False

    def _content(self, text: str) -> None:
        body = text.rstrip()
        if not body:
            self._held_space += text
            return
        is_first_after_call = self._out.num_calls > 0 and not self._has_content
        body = body.lstrip() if is_first_after_call else self._held_space + body
        self._has_content = True
        self._out.content(body)
        self._held_space = text[len(text.rstrip()) :]

    def _give_up(self, text: str) -> None:
        """What looked like a call is content after all."""
        self._content(text)


class PlainText(TextMachine):
    """Everything is content."""

    def __init__(self, out: MessageWriter) -> None:
        super().__init__()
        self._out = out
        self._state = self._pass_on

    def _pass_on(self) -> bool:
        self._out.content(self._take(len(self._buffer)))
        return False

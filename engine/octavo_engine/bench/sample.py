"""What one streamed answer looked like to its client. Reads events; the caller gives the clock."""

from dataclasses import dataclass, field

import msgspec


@dataclass(slots=True)
class Sample:
    start_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    """Between two pieces of text; a piece may hold several tokens."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    error: str | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None

    @property
    def has_text(self) -> bool:
        if self.delta is not None:
            return bool(self.delta.content or self.delta.reasoning_content)
        return bool(self.text)


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    message: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


class SampleReader:
    """Takes the pieces of a body as they come and fills a sample."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._rest = b""
        self.is_done = False
        """The stream has said so itself."""

    def take(self, piece: bytes, now_s: float) -> None:
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: "):
                self._take_event(event[6:], now_s)

    def finish(self, status: int) -> None:
        """The answer is over: says what went wrong, if anything."""
        sample = self._sample
        if status != 200:
            sample.error = f"status {status}: {_message(self._rest)}"
        elif sample.error is None and not self.is_done:
            sample.error = "the stream ended without [DONE]"

    def _take_event(self, data: bytes, now_s: float) -> None:
        sample = self._sample
        if data == b"[DONE]":
            self.is_done = True
            return
        chunk = _decode(data)
        if chunk.error is not None:
            sample.error = chunk.error.message
        if chunk.usage is not None:
            sample.num_prompt_tokens = chunk.usage.prompt_tokens
            sample.num_output_tokens = chunk.usage.completion_tokens
        if any(choice.has_text for choice in chunk.choices):
            if sample.last_token_s is None:
                sample.first_token_s = now_s
            else:
                sample.gaps_s.append(now_s - sample.last_token_s)
            sample.last_token_s = now_s


def _message(body: bytes) -> str:
    try:
        error = _decode(body).error
    except msgspec.DecodeError:
        error = None
    return error.message if error is not None else body[:200].decode(errors="replace")

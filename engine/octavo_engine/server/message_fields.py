"""Messages of a conversation as clients send them."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from octavo_engine.server.field_errors import InvalidField
from octavo_engine.server.neutral_fields import NeutralFields


class TextPart(NeutralFields):
    model_config = ConfigDict(strict=True, extra="forbid")

    neutral_values: ClassVar[dict[str, tuple[Any, ...]]] = {"prompt_cache_breakpoint": ()}

    type: Literal["text"]
    text: str


class RefusalPart(BaseModel):
    """What an assistant said instead of an answer; its words, for the template."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


ContentPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
_OTHER_PARTS = ("image_url", "input_audio", "file", "video_url", "audio_url")
"""Known kinds of content that a language model of text cannot take."""


class CalledFunction(BaseModel):
    """An earlier call in the form that came before `tool_calls`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    arguments: str


class ChatMessage(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], Field(min_length=1)] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    # Sent back by clients with the assistant's earlier answers; only the template may use them.
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    annotations: list[Any] | None = None
    audio: None = None

    @field_validator("content", mode="before")
    @classmethod
    def _refuse_other_parts(cls, content: Any) -> Any:
        for part in content if isinstance(content, list) else []:
            if isinstance(part, dict) and part.get("type") in _OTHER_PARTS:
                raise ValueError(
                    f"content of type {part['type']!r} is not supported by this server"
                )
        return content

    @model_validator(mode="after")
    def _check_content(self) -> "ChatMessage":
        calls = self.tool_calls or self.function_call
        if self.content is None and not (self.role == "assistant" and calls):
            raise InvalidField("content", f"a message of role '{self.role}' needs 'content'")
        if self.tool_calls and self.function_call:
            message = "a message has either 'tool_calls' or 'function_call'"
            raise InvalidField("function_call", message)
        if self.role == "function" and not self.name:
            raise InvalidField("name", "a message of role 'function' needs 'name'")
        return self

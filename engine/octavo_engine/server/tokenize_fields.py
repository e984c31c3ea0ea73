"""POST /tokenize and /detokenize, with the fields that other engines gave them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from octavo_engine.server.field_errors import InvalidField
from octavo_engine.server.message_fields import ChatMessage
from octavo_engine.server.request_fields import TokenId
from octavo_engine.server.tool_fields import MAX_TOOLS, Tool

_OF_MESSAGES = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")


class TokenizeRequest(BaseModel):
    """Either a prompt or a conversation."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    """Default: for a prompt, where the template of a conversation has written its own."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check_one(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("needs either 'prompt' or 'messages'")
        for name in _OF_MESSAGES:
            if self.prompt is not None and getattr(self, name) is not None:
                raise InvalidField(name, f"'{name}' goes with 'messages', not with 'prompt'")
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidField(
                "continue_final_message",
                "'continue_final_message' and 'add_generation_prompt' cannot both be true",
            )
        return self


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    tokens: list[TokenId]

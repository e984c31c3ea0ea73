"""What /v1/responses answers, in OpenAI's form."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from octavo_engine.server.response_types import ContentLogprob, Usage

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputText(Struct, kw_only=True):
    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[Any] = []
    logprobs: list[ContentLogprob] = []


class ReasoningText(Struct, kw_only=True):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class MessageItem(Struct, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    status: ItemStatus = "in_progress"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = []


class ReasoningItem(Struct, kw_only=True):
    id: str
    type: Literal["reasoning"] = "reasoning"
    status: ItemStatus = "in_progress"
    summary: list[Any] = []
    content: list[ReasoningText] = []


class FunctionCallItem(Struct, kw_only=True):
    id: str
    type: Literal["function_call"] = "function_call"
    status: ItemStatus = "in_progress"
    call_id: str
    name: str
    arguments: str = ""


OutputItem = MessageItem | ReasoningItem | FunctionCallItem


class InputTokensDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True):
    reasoning_tokens: int


class ResponsesUsage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> "ResponsesUsage":
        details = usage.completion_tokens_details
        return cls(
            usage.prompt_tokens,
            InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            OutputTokensDetails(0 if details is UNSET else details.reasoning_tokens),
            usage.total_tokens,
        )


class IncompleteDetails(Struct, frozen=True):
    reason: Literal["max_output_tokens"]


class ResponseFailure(Struct, frozen=True):
    code: str
    message: str


class ResponseObject(Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus = "in_progress"
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: dict[str, Any]
    store: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponsesUsage | None = None
    user: str | None
    metadata: dict[str, str]
    background: bool = False
    service_tier: Literal["default"] = "default"
    top_logprobs: int | UnsetType = UNSET

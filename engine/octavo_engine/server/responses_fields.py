"""POST /v1/responses, field by field: the part of OpenAI's Responses API that keeps no state."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from octavo_engine.server.field_errors import InvalidField
from octavo_engine.server.neutral_fields import NeutralFields
from octavo_engine.server.request_fields import MAX_TOP_LOGPROBS, Effort, GenerationFields
from octavo_engine.server.structure_fields import JsonObjectFormat, TextFormat
from octavo_engine.server.tool_fields import MAX_TOOLS, FunctionName

_STRICT = ConfigDict(strict=True, extra="forbid")
Status = Literal["in_progress", "completed", "incomplete"]
LOGPROBS = "message.output_text.logprobs"
_OF_CALLS: dict[str, tuple[Any, ...]] = {"caller": ({"type": "direct"},), "namespace": ()}
"""Of calls by programs, and of functions in groups: there are none."""
_ASYNC: dict[str, tuple[Any, ...]] = {"async": (False,), "async_": (False,)}
"""The second is what the first is called where OpenAI's client dumps an answer."""


class TextItemPart(NeutralFields):
    model_config = _STRICT

    neutral_values: ClassVar[dict[str, tuple[Any, ...]]] = {"prompt_cache_breakpoint": ()}

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class RefusalItemPart(BaseModel):
    model_config = _STRICT

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


Parts = list[Annotated[TextItemPart | RefusalItemPart, Field(discriminator="type")]]


class MessageInput(BaseModel):
    model_config = _STRICT

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    id: str | None = None
    status: Status | None = None
    phase: str | None = None


class FunctionCallInput(NeutralFields):
    model_config = _STRICT

    neutral_values: ClassVar[dict[str, tuple[Any, ...]]] = _OF_CALLS | _ASYNC

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None


class FunctionOutputInput(NeutralFields):
    model_config = _STRICT

    neutral_values: ClassVar[dict[str, tuple[Any, ...]]] = _OF_CALLS

    type: Literal["function_call_output"]
    call_id: str
    output: str | Parts
    name: str | None = None
    id: str | None = None
    status: Status | None = None


class ReasoningInput(BaseModel):
    """An earlier answer's reasoning; only the template may use it."""

    model_config = _STRICT

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[dict[str, Any]] = []
    content: list[dict[str, Any]] | None = None
    encrypted_content: None = None
    status: Status | None = None


def _kind(item: Any) -> str:
    """No kind at all for what is neither an object nor one of the models below."""
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "")
    return str(kind)


InputItem = Annotated[
    Annotated[MessageInput, Tag("message")]
    | Annotated[FunctionCallInput, Tag("function_call")]
    | Annotated[FunctionOutputInput, Tag("function_call_output")]
    | Annotated[ReasoningInput, Tag("reasoning")],
    Discriminator(_kind),
]


class FunctionToolFields(NeutralFields):
    model_config = _STRICT

    neutral_values: ClassVar[dict[str, tuple[Any, ...]]] = _ASYNC | {
        "defer_loading": (False,),
        "allowed_callers": (["direct"],),
        "output_schema": (),
    }

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionChoice(BaseModel):
    model_config = _STRICT

    type: Literal["function"]
    name: FunctionName


class AllowedChoice(BaseModel):
    """Some of the tools."""

    model_config = _STRICT

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionToolFields], Field(min_length=1, max_length=MAX_TOOLS)]


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[FunctionChoice | AllowedChoice, Field(discriminator="type")]
)


class SchemaFormat(BaseModel):
    model_config = _STRICT

    type: Literal["json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextFields(BaseModel):
    model_config = _STRICT

    format: (
        Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None
    ) = None
    verbosity: Literal["medium"] | None = None


class ReasoningFields(BaseModel):
    model_config = _STRICT

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    """The reasoning itself is given, never a summary."""
    generate_summary: Literal["auto"] | None = None
    """An older name of the same."""
    context: Literal["auto"] | None = None
    """Which earlier reasoning the model sees is up to its template."""
    mode: Literal["standard"] | None = None


class ResponsesStreamOptions(BaseModel):
    model_config = _STRICT

    include_obfuscation: bool = False
    """No padding is ever added."""


class ResponsesRequest(GenerationFields):
    neutral_values: ClassVar[dict[str, tuple[Any, ...]]] = GenerationFields.neutral_values | {
        "background": (False,),
        "previous_response_id": (),
        "conversation": (),
        "prompt": (),
        "truncation": ("disabled",),
        "access_programs": (),
        "background_options": (),
        "context_management": (),
        "image": (),
        "moderation": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": ("in_memory",),
    }
    ignored_fields: ClassVar[tuple[str, ...]] = (
        *GenerationFields.ignored_fields,
        "max_tool_calls",
    )

    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    include: list[Literal["message.output_text.logprobs"]] | None = None
    tools: Annotated[list[FunctionToolFields], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = Field(None, ge=1)
    """Of tools that are built in: there are none."""
    text: TextFields | None = None
    reasoning: ReasoningFields | None = None
    metadata: dict[str, str] | None = None
    stream_options: ResponsesStreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    # Beyond OpenAI's.
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    cache_salt: str | None = Field(None, min_length=1, max_length=256)
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_logprobs(self) -> "ResponsesRequest":
        if self.top_logprobs is not None and not self.wants_logprobs:
            raise InvalidField(
                "top_logprobs", f"'top_logprobs' is only allowed when 'include' has '{LOGPROBS}'"
            )
        return self

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or [])

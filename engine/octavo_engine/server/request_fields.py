"""What a client may send, field by field, with types and ranges. Knows no model and no engine.

A field that OpenAI does not have and we do not add is refused, as OpenAI does. A field that we know
but cannot honour is accepted only with the value that changes nothing.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from octavo_engine.server.field_errors import InvalidField, UnsupportedField, shown
from octavo_engine.server.message_fields import ChatMessage
from octavo_engine.server.neutral_fields import NeutralFields
from octavo_engine.server.structure_fields import StructureFields
from octavo_engine.server.tool_fields import ToolFields

MAX_N = 128
MAX_STOPS = 32
MAX_LIST_LEN = 1024
MAX_TOP_LOGPROBS = 20

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=512)]
TokenId = Annotated[int, Field(ge=0)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False
    """Accepted for OpenAI's clients; no padding is ever added."""
    continuous_usage_stats: bool = False


class GenerationFields(NeutralFields):
    """What every endpoint that generates knows."""

    model_config = ConfigDict(strict=True, extra="forbid")

    neutral_values: ClassVar[dict[str, tuple[Any, ...]]] = {
        "store": (False,),
        "service_tier": ("auto", "default"),
    }
    ignored_fields: ClassVar[tuple[str, ...]] = (
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "request_id",
    )
    """Taken with any value: what they say of the client changes no answer."""
    neutral_words: ClassVar[dict[str, str]] = {}
    """Of fields without effect that are checked beside others: the values taken, in words."""

    model: str
    stream: bool | None = None


class SamplingFields(GenerationFields, StructureFields):
    """Fields that /v1/completions and /v1/chat/completions share."""

    neutral_values: ClassVar[dict[str, tuple[Any, ...]]] = GenerationFields.neutral_values | {
        "use_beam_search": (False,),
        "length_penalty": (1, 1.0),
        "truncate_prompt_tokens": (),
        "spaces_between_special_tokens": (True, False),
    }

    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1, le=MAX_N)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    presence_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    logit_bias: (
        Annotated[
            dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_LIST_LEN)
        ]
        | None
    ) = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    user: str | None = None

    # Beyond OpenAI's, under the names that other engines gave them.
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    repetition_penalty: float | None = Field(None, gt=0, le=10, allow_inf_nan=False)
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_LIST_LEN)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    bad_words: Annotated[list[StopString], Field(max_length=MAX_LIST_LEN)] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    request_id: str | None = Field(None, max_length=256)
    return_token_ids: bool | None = None

    @model_validator(mode="after")
    def _check_combinations(self) -> "SamplingFields":
        if self.stream_options is not None and not self.stream:
            raise InvalidField(
                "stream_options", "'stream_options' is only allowed when 'stream' is true"
            )
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidField(
                "prompt_logprobs", "'prompt_logprobs' is not available when 'stream' is true"
            )
        return self

    @property
    def stops(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop


class CompletionRequest(SamplingFields):
    """POST /v1/completions."""

    neutral_values: ClassVar[dict[str, tuple[Any, ...]]] = SamplingFields.neutral_values | {
        "suffix": ("",),
    }
    neutral_words: ClassVar[dict[str, str]] = {"best_of": "the same as 'n'"}

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    max_tokens: int | None = Field(None, ge=0)
    """0: nothing is generated; with `echo` and `logprobs` the prompt is scored."""
    best_of: int | None = Field(None, ge=1, le=MAX_N)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    add_special_tokens: bool | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _check_form(cls, prompt: Any) -> Any:
        kinds = set(map(type, prompt)) if isinstance(prompt, list) else {type(prompt)}
        forms: list[set[type]] = [{str}]
        if isinstance(prompt, list):
            forms += [{int}, {list}, set()]
        if kinds not in forms:
            raise ValueError(
                "'prompt' should be a text, a list of token ids or a list of only one of these, "
                f"got {shown(prompt)}"
            )
        return prompt

    @property
    def prompts(self) -> list[str | list[int]]:
        """One for each text to complete."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        ids = [item for item in prompt if isinstance(item, int)]
        return [ids] if ids else [item for item in prompt if not isinstance(item, int)]

    @property
    def has_prompt_list(self) -> bool:
        return self.prompts != [self.prompt]

    @model_validator(mode="after")
    def _check_best_of(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise UnsupportedField("best_of", self.best_of, self.neutral_words["best_of"])
        return self


class ChatCompletionRequest(ToolFields, SamplingFields):
    """POST /v1/chat/completions."""

    model_config = ConfigDict(strict=True, extra="forbid")

    neutral_values: ClassVar[dict[str, tuple[Any, ...]]] = SamplingFields.neutral_values | {
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "moderation": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": ("in_memory",),
        "web_search_options": (),
        "verbosity": ("medium",),
    }

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Effort | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> "ChatCompletionRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidField(
                "top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true"
            )
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidField(
                "continue_final_message",
                "'continue_final_message' and 'add_generation_prompt' cannot both be true",
            )
        return self

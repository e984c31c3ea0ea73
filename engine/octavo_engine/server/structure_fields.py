"""Fields that ask for output in a form: `response_format`, `structured_outputs`, `guided_*`.

Knows their shapes alone; the grammars are made in `structure.py`.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from octavo_engine.server.field_errors import InvalidField

MAX_CHOICES = 2000
MAX_PATTERN_CHARS = 16 * 1024
MAX_GRAMMAR_CHARS = 128 * 1024

Pattern = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATTERN_CHARS)]
GrammarText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Choices = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=4096)]],
    Field(min_length=1, max_length=MAX_CHOICES),
]


class JsonSchemaFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    name: str | None = Field(None, max_length=64)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    """The schema is followed exactly in any case."""


class TextFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["text"]


class JsonObjectFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["json_object"]


class JsonSchemaResponse(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["json_schema"]
    json_schema: JsonSchemaFormat


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaResponse, Field(discriminator="type")
]


class StructuredOutputs(BaseModel):
    """One form, under the names that vLLM gave them."""

    model_config = ConfigDict(strict=True, extra="forbid")

    # `json` is a method of every pydantic model.
    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None

    @model_validator(mode="after")
    def _check_one(self) -> "StructuredOutputs":
        forms = (self.json_, self.regex, self.choice, self.grammar, self.json_object or None)
        if sum(form is not None for form in forms) != 1:
            raise ValueError(
                "needs just one of 'json', 'regex', 'choice', 'grammar', 'json_object'"
            )
        return self


class StructureFields(BaseModel):
    """What /v1/completions and /v1/chat/completions share."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None

    @model_validator(mode="after")
    def _check_one_form(self) -> "StructureFields":
        given = [name for name in StructureFields.model_fields if getattr(self, name) is not None]
        if isinstance(self.response_format, TextFormat):
            given.remove("response_format")
        if len(given) > 1:
            names = " and ".join(repr(name) for name in given)
            raise InvalidField(given[-1], f"only one of {names} is allowed")
        return self

"""Fields that offer functions to the model and say whether it may, or must, call them.

OpenAI's older pair, `functions` and `function_call`, asks for the same with one call at most; it is
turned into the newer fields here, and only the answer's form remembers it.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from octavo_engine.server.field_errors import InvalidField

MAX_TOOLS = 128

FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionSpec(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """The arguments follow the schema, in all; where a call is required they do in any case."""


class Tool(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["function"]
    function: FunctionSpec


class NamedFunction(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    name: FunctionName


class NamedToolChoice(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    mode: Literal["auto", "required"]
    tools: Annotated[list[Tool], Field(min_length=1, max_length=MAX_TOOLS)]
    """Only their names count: what they are is said in the request's `tools`."""


class AllowedToolsChoice(BaseModel):
    """Some of the tools; the model is not told of the others."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[NamedToolChoice | AllowedToolsChoice, Field(discriminator="type")]
)


class ToolFields(BaseModel):
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionSpec], Field(max_length=MAX_TOOLS)] | None = None
    function_call: Literal["none", "auto"] | NamedFunction | None = None

    @model_validator(mode="after")
    def _check_tools(self) -> "ToolFields":
        self._take_functions()
        tools, choice = self._tools_param, self._choice_param
        names = [tool.function.name for tool in self.tools or []]
        if len(set(names)) < len(names):
            raise InvalidField(tools, f"'{tools}' has two functions of one name")
        if self.must_call and not names:
            raise InvalidField(choice, f"'{choice}' asks for a call without any function")
        for name in self._chosen_names():
            if name not in names:
                message = f"'{choice}' names {name!r}, which is not in '{tools}'"
                raise InvalidField(choice, message)
        return self

    @property
    def uses_functions(self) -> bool:
        """The request is of the older form, and so is its answer."""
        return bool(self.functions)

    @property
    def offered_tools(self) -> list[Tool]:
        """Those that the model is told of."""
        tools = self.tools or []
        if self.tool_choice == "none":
            return []
        if isinstance(self.tool_choice, AllowedToolsChoice):
            return [tool for tool in tools if tool.function.name in self._chosen_names()]
        return tools

    @property
    def callable_tools(self) -> list[Tool]:
        if isinstance(self.tool_choice, NamedToolChoice):
            return [tool for tool in self.tools or [] if tool.function.name in self._chosen_names()]
        return self.offered_tools

    @property
    def must_call(self) -> bool:
        choice = self.tool_choice
        if isinstance(choice, AllowedToolsChoice):
            return choice.allowed_tools.mode == "required"
        return choice == "required" or self.names_function

    @property
    def names_function(self) -> bool:
        """There is no choice: the client has said which function is called."""
        return isinstance(self.tool_choice, NamedToolChoice)

    @property
    def _tools_param(self) -> str:
        return "functions" if self.uses_functions else "tools"

    @property
    def _choice_param(self) -> str:
        return "function_call" if self.function_call is not None else "tool_choice"

    def param_of(self, tool: Tool) -> str:
        """The place in the request of a function's parameters."""
        assert self.tools is not None
        function = "" if self.uses_functions else "function."
        return f"{self._tools_param}.{self.tools.index(tool)}.{function}parameters"

    def _take_functions(self) -> None:
        if not self.functions and self.function_call is None:
            return
        if self.tools is not None or self.tool_choice is not None:
            name = "function_call" if self.functions is None else "functions"
            raise InvalidField(name, "'functions' and 'function_call' cannot go with 'tools'")
        self.tools = [Tool(type="function", function=each) for each in self.functions or []]
        self.parallel_tool_calls = False
        self.tool_choice = (
            NamedToolChoice(type="function", function=self.function_call)
            if isinstance(self.function_call, NamedFunction)
            else self.function_call
        )

    def _chosen_names(self) -> list[str]:
        match self.tool_choice:
            case NamedToolChoice(function=function):
                return [function.name]
            case AllowedToolsChoice(allowed_tools=allowed):
                return [tool.function.name for tool in allowed.tools]
        return []

"""From the bytes of a body to a checked request; a complaint is one sentence naming its field."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from octavo_engine.server.errors import ApiError
from octavo_engine.server.unsupported import UnsupportedField

R = TypeVar("R", bound=BaseModel)

_UNION_TYPES = ("str", "int")
_UNION_BRANCHES = (
    "list[",
    "dict[",
    "constrained-",
    "function-",
    "nullable",
    "literal[",
    "tagged-union[",
)
"""Parts of a pydantic location that name a branch of a type, not a field of the request; models,
too, are named as such, and theirs are the only names with capitals."""
_TAGGED_FIELDS = ("response_format", "content", "tool_choice")
"""Whose location goes on with the value of `type`."""


def parse_body(body: bytes, kind: type[R]) -> R:
    """Raises `ApiError` 400. Slow for large bodies: call it off the event loop for those."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False)) from error


def _explain(problems: Sequence[Any]) -> ApiError:
    problem = _most_specific(problems)
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, UnsupportedField):
        return ApiError(400, str(cause), param=cause.name, code="unsupported_parameter")
    param = field_path(problem["loc"])
    match problem["type"]:
        case "json_invalid":
            message = f"The body is not valid JSON: {problem['ctx']['error']}"
            return ApiError(400, message, code="invalid_json")
        case "extra_forbidden":
            message = f"Unrecognized request argument supplied: {param}"
            return ApiError(400, message, param=param, code="unknown_parameter")
        case "missing":
            message = f"Missing required parameter: '{param}'."
            return ApiError(400, message, param=param, code="missing_required_parameter")
        case "value_error":
            return ApiError(400, str(cause), param=param or None, code="invalid_value")
    given = repr(problem.get("input"))
    given = given if len(given) <= 80 else given[:77] + "..."
    message = f"Invalid value for '{param}': {problem['msg']}, got {given}."
    code = "invalid_type" if problem["type"].endswith("_type") else "invalid_value"
    return ApiError(400, message, param=param or None, code=code)


def _most_specific(problems: Sequence[Any]) -> Any:
    """Of the complaints about one field, that of the union branch which went furthest."""
    first = field_path(problems[0]["loc"]).partition(".")[0]
    same_field = [p for p in problems if field_path(p["loc"]).partition(".")[0] == first]
    return max(same_field, key=lambda p: (len(p["loc"]), not _is_of_another_type(p)))


def _is_of_another_type(problem: Any) -> bool:
    """A branch that only complains of the type was not the one meant; nor were words, when an
    object was given."""
    is_object = isinstance(problem.get("input"), dict)
    return problem["type"].endswith("_type") or (is_object and problem["type"] == "literal_error")


def field_path(loc: Sequence[int | str]) -> str:
    """`("messages", 0, "content", "str")` as `messages.0.content`."""
    names: list[str] = []
    for idx, part in enumerate(loc):
        is_tag = isinstance(part, str) and _is_tag(loc[:idx])
        if isinstance(part, int) or not (is_tag or _is_branch(part)):
            names.append(str(part))
    return ".".join(names)


def _is_tag(before: Sequence[int | str]) -> bool:
    parents = [part for part in before if isinstance(part, str) and not _is_branch(part)]
    if not parents or parents[-1] not in _TAGGED_FIELDS:
        return False
    return parents[-1] != "content" or isinstance(before[-1], int)


def _is_branch(part: str) -> bool:
    return part in _UNION_TYPES or part.startswith(_UNION_BRANCHES) or part[:1].isupper()

"""From the bytes of a body to a checked request; a complaint is one sentence naming its field."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from octavo_engine.server.errors import ApiError
from octavo_engine.server.field_errors import InvalidField, UnsupportedField, shown

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
_TAGGED_FIELDS = ("response_format", "format", "tool_choice")
"""Whose location goes on with the value of `type`."""
_LISTS_OF_TAGGED = ("content", "input", "output")
"""Whose items' locations do."""


def parse_body(body: bytes, kind: type[R]) -> R:
    """Raises `ApiError` 400. Slow for large bodies: call it off the event loop for those."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise explain(error) from error


def explain(error: ValidationError) -> ApiError:
    """The 400 that says in one sentence which field is wrong, and how."""
    problem = _most_specific(error.errors(include_url=False))
    cause = problem.get("ctx", {}).get("error")
    param = field_path(problem["loc"])
    if problem["type"] == "json_invalid":
        return ApiError(400, f"The body is not valid JSON: {cause}", code="invalid_json")
    if problem["type"] == "value_error":
        return _explain_own(cause, param)
    if not param:
        message = f"The body should be an object, got {shown(problem['input'])}."
        return ApiError(400, message, code="invalid_type")
    return _explain_field(problem, param)


def _explain_own(cause: Any, param: str) -> ApiError:
    """What our own validators complain of."""
    if isinstance(cause, InvalidField):
        param = f"{param}.{cause.name}" if param else cause.name
    is_unsupported = isinstance(cause, UnsupportedField)
    code = "unsupported_parameter" if is_unsupported else "invalid_value"
    return ApiError(400, str(cause), param=param or None, code=code)


def _explain_field(problem: Any, param: str) -> ApiError:
    words = problem["msg"]
    match problem["type"]:
        case "extra_forbidden":
            message = f"Unrecognized request argument supplied: {param}"
            return ApiError(400, message, param=param, code="unknown_parameter")
        case "missing":
            message = f"Missing required parameter: '{param}'."
            return ApiError(400, message, param=param, code="missing_required_parameter")
        case "union_tag_not_found":
            message = f"Missing required parameter: '{param}.type'."
            return ApiError(400, message, param=f"{param}.type", code="missing_required_parameter")
        case "union_tag_invalid":
            words = f"'type' should be one of {problem['ctx']['expected_tags']}"
    message = f"Invalid value for '{param}': {words}, got {shown(problem['input'])}."
    code = "invalid_type" if problem["type"].endswith("_type") else "invalid_value"
    return ApiError(400, message, param=param, code=code)


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
    if not parents:
        return False
    is_item = isinstance(before[-1], int)
    return parents[-1] in (_LISTS_OF_TAGGED if is_item else _TAGGED_FIELDS)


def _is_branch(part: str) -> bool:
    return part in _UNION_TYPES or part.startswith(_UNION_BRANCHES) or part[:1].isupper()

"""Errors as OpenAI's clients know them: {"error": {message, type, param, code}}, never a trace."""

import msgspec
from starlette.responses import Response

from octavo_engine.errors import EngineDead, OctavoError, QueueFull, RequestError

MAX_MESSAGE_CHARS = 1000
"""A message may quote the request; the answer stays small whatever was sent."""
MAX_PARAM_CHARS = 200


class ErrorInfo(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorInfo


class ApiError(Exception):
    """An answer other than 200, raised anywhere below a route."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> ErrorBody:
        message = str(self)
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[: MAX_MESSAGE_CHARS - 3] + "..."
        param = None if self.param is None else self.param[:MAX_PARAM_CHARS]
        return ErrorBody(ErrorInfo(message, _type_of(self.status), param, self.code))

    def response(self) -> Response:
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        return json_response(self.body(), self.status, headers)


def json_response(
    content: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(content), status, headers, "application/json")


def from_engine(error: OctavoError) -> ApiError:
    """The answer to what the engine raised when a request was given to it."""
    match error:
        case RequestError():
            too_long = type(error).__name__ == "PromptTooLong"
            code = "context_length_exceeded" if too_long else "invalid_value"
            return ApiError(400, str(error), param=error.param, code=code)
        case QueueFull():
            return ApiError(429, str(error), code="queue_full", retry_after_s=1)
        case EngineDead():
            return ApiError(503, "the engine has stopped", code="engine_dead", retry_after_s=10)
    return ApiError(500, "internal error")


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"

"""Reads a request body up to a limit and parses it without holding the event loop."""

import asyncio
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request

from octavo_engine.server.disconnect import ClientGone
from octavo_engine.server.errors import ApiError
from octavo_engine.server.parse import parse_body
from octavo_engine.server.settings import ServerSettings

R = TypeVar("R", bound=BaseModel)

_PARSE_IN_THREAD_BYTES = 64 * 1024
_JSON_TYPE = "application/json"


async def read_request(request: Request, kind: type[R], settings: ServerSettings) -> R:
    """Raises `ApiError` 415 for what is declared to be no JSON, 413 over the limit, 408 for a body
    that does not come, and 400 for what is not a valid request."""
    _refuse_other_types(request)
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            body = await _read_limited(request, settings.max_body_bytes)
    except TimeoutError as error:
        message = f"the body did not come within {settings.body_timeout_s:g} s"
        raise ApiError(408, message, code="request_timeout") from error
    if len(body) < _PARSE_IN_THREAD_BYTES:
        return parse_body(body, kind)
    return await asyncio.to_thread(parse_body, body, kind)


def _refuse_other_types(request: Request) -> None:
    """Forms and plain text, too: a web page may send those to any server that its reader reaches,
    without asking first."""
    declared = request.headers.get("content-type", "")
    if declared.partition(";")[0].strip().lower() != _JSON_TYPE:
        message = f"The body should be sent as 'content-type: {_JSON_TYPE}', got {declared!r}."
        raise ApiError(415, message, code="unsupported_media_type")
    coding = request.headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":
        message = f"A body of 'content-encoding: {coding}' is not supported by this server."
        raise ApiError(415, message, code="unsupported_media_type")


async def _read_limited(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(int(declared), max_bytes)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise _too_large(len(body), max_bytes)
    except ClientDisconnect as error:
        raise ClientGone from error
    return bytes(body)


def _too_large(num_bytes: int, max_bytes: int) -> ApiError:
    message = f"the body has {num_bytes} bytes or more, over the limit of {max_bytes}"
    return ApiError(413, message, code="body_too_large")

"""An HTTP client of the server over an engine, in this process and without a socket."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from tests.engine.byte_tokenizer import make_tokenizer

from octavo_engine.messages import EngineClient
from octavo_engine.server.app import build_app
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.state import Loaded, Phase, ServerState
from octavo_engine.text.tokenizer import Tokenizer

MODEL = "echo"


def make_state(
    engine: EngineClient | None, tokenizer: Tokenizer | None = None, **settings: Any
) -> ServerState:
    """State of a server that is ready, or still loading without an engine."""
    state = ServerState(ServerSettings(served_model_names=(MODEL, "alias"), **settings))
    if engine is not None:
        state.loaded = Loaded(engine, tokenizer or make_tokenizer())
        state.phase = Phase.READY
    return state


class Client:
    def __init__(self, state: ServerState, http: httpx.AsyncClient) -> None:
        self.state = state
        self.http = http

    async def chat(self, content: str = "hi", **fields: Any) -> dict[str, Any]:
        return await self.ok("/v1/chat/completions", chat_body(content, **fields))

    async def complete(self, prompt: Any = "hi", **fields: Any) -> dict[str, Any]:
        return await self.ok("/v1/completions", {"model": MODEL, "prompt": prompt, **fields})

    async def ok(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        result: dict[str, Any] = response.json()
        return result

    async def refused(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The `error` object of an answer that must have this status."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        response = await self.http.post(path, content=content, headers=headers)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    async def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The chunks of a stream that must end with [DONE]."""
        response = await self.http.post(path, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        events = response.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    async def stream_response(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream of /v1/responses, which must be numbered without gaps."""
        response = await self.http.post("/v1/responses", json={**body, "stream": True})
        assert response.status_code == 200, response.text
        events = []
        for block in response.text.removesuffix("\n\n").split("\n\n"):
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            events.append(event)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return events

    async def stream_chat(self, content: str = "hi", **fields: Any) -> list[dict[str, Any]]:
        return await self.stream("/v1/chat/completions", chat_body(content, **fields))

    async def stream_complete(self, prompt: Any = "hi", **fields: Any) -> list[dict[str, Any]]:
        return await self.stream("/v1/completions", {"model": MODEL, "prompt": prompt, **fields})


def chat_body(content: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


@asynccontextmanager
async def client_of(state: ServerState) -> AsyncIterator[Client]:
    transport = httpx.ASGITransport(app=build_app(state), raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        yield Client(state, http)


@asynccontextmanager
async def serving(
    engine: EngineClient, tokenizer: Tokenizer | None = None, **settings: Any
) -> AsyncIterator[Client]:
    async with client_of(make_state(engine, tokenizer, **settings)) as client:
        yield client

"""Every endpoint by plain HTTP: what is on the wire, field by field."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
from tests.conformance.report import Check

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


class HttpChecks:
    def __init__(self, http: httpx.Client, model: str) -> None:
        """`http` knows the server's address and key."""
        self._http = http
        self._model = model

    def checks(self) -> dict[str, Check]:
        return {
            "models": self._models,
            "chat": self._chat,
            "chat stream = answer": self._chat_stream,
            "chat n, logprobs": self._chat_logprobs,
            "completion": self._completion,
            "completion stream = answer": self._completion_stream,
            "prompt scored": self._score,
            "usage chunk": self._usage_chunk,
            "stop string": self._stop,
            "json schema": self._schema,
            "tool call required": self._tool,
            "tool call stream": self._tool_stream,
            "response": self._response,
            "response stream = answer": self._response_stream,
            "tokenize, detokenize": self._tokenize,
            "errors": self._errors,
        }

    def _post(self, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
        answer = self._http.post(path, json={"model": self._model, **body})
        assert answer.status_code == status, f"{answer.status_code}: {answer.text[:300]}"
        result: dict[str, Any] = answer.json()
        return result

    def _events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        asked = {"model": self._model, "stream": True, **body}
        with self._http.stream("POST", path, json=asked) as answer:
            assert answer.status_code == 200, answer.read()[:300]
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))

    def _body(self, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": "Name a colour."}]
        return {"messages": messages, "temperature": 0, "max_tokens": 12, **fields}

    def _models(self) -> None:
        listed = self._http.get("/v1/models").raise_for_status().json()
        assert listed["object"] == "list"
        assert self._model in [card["id"] for card in listed["data"]]

    def _chat(self) -> None:
        answer = self._post("/v1/chat/completions", self._body())
        assert answer["object"] == "chat.completion"
        (choice,) = answer["choices"]
        assert choice["message"]["role"] == "assistant"
        assert choice["message"]["content"]
        assert choice["finish_reason"] in ("stop", "length")
        usage = answer["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

    def _chat_stream(self) -> None:
        chunks = list(self._events("/v1/chat/completions", self._body()))
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert chunks[-1]["choices"][0]["finish_reason"]
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        answer = self._post("/v1/chat/completions", self._body())
        assert text == answer["choices"][0]["message"]["content"]

    def _chat_logprobs(self) -> None:
        body = self._body(n=2, logprobs=True, top_logprobs=2, temperature=1, seed=1)
        choices = self._post("/v1/chat/completions", body)["choices"]
        assert [choice["index"] for choice in choices] == [0, 1]
        for choice in choices:
            content = choice["logprobs"]["content"]
            assert all(len(entry["top_logprobs"]) == 2 for entry in content)
            assert all(entry["logprob"] <= 0 for entry in content)

    def _completion(self) -> None:
        body = {"prompt": "Once upon a", "max_tokens": 8, "temperature": 0}
        answer = self._post("/v1/completions", body)
        assert answer["object"] == "text_completion"
        assert answer["choices"][0]["text"]

    def _completion_stream(self) -> None:
        body = {"prompt": "Once upon a", "max_tokens": 8, "temperature": 0}
        chunks = self._events("/v1/completions", body)
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        assert text == self._post("/v1/completions", body)["choices"][0]["text"]

    def _score(self) -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 0, "echo": True, "logprobs": 1}
        answer = self._post("/v1/completions", body)
        (choice,) = answer["choices"]
        assert choice["text"] == "Once upon a time"
        first, *others = choice["logprobs"]["token_logprobs"]
        assert first is None
        assert others
        assert all(score <= 0 for score in others)
        assert answer["usage"]["completion_tokens"] == 0

    def _usage_chunk(self) -> None:
        body = self._body(stream_options={"include_usage": True})
        *others, last = self._events("/v1/chat/completions", body)
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] > 0
        assert all(chunk["usage"] is None for chunk in others)

    def _stop(self) -> None:
        body = {"prompt": "1 2 3 4 5 6", "max_tokens": 20, "temperature": 0}
        text = self._post("/v1/completions", body)["choices"][0]["text"]
        stop = text[3:5]
        choice = self._post("/v1/completions", {**body, "stop": [stop]})["choices"][0]
        assert choice["text"] == text[: text.index(stop)]
        assert choice["finish_reason"] == "stop"

    def _schema(self) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}
        body = self._body(response_format=form, max_tokens=80)
        message = self._post("/v1/chat/completions", body)["choices"][0]["message"]
        trip = json.loads(message["content"])
        assert trip["city"] in ("Paris", "Rome")
        assert trip["days"] in (1, 2, 3)

    def _tool(self) -> None:
        body = self._body(
            tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=100
        )
        (choice,) = self._post("/v1/chat/completions", body)["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
        assert choice["finish_reason"] == "tool_calls"

    def _tool_stream(self) -> None:
        body = self._body(
            tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=100
        )
        parts = [
            part
            for chunk in self._events("/v1/chat/completions", body)
            for part in chunk["choices"][0]["delta"].get("tool_calls", [])
        ]
        assert parts[0]["function"]["name"] == "weather"
        assert all("id" not in part for part in parts[1:])
        assert json.loads("".join(part["function"]["arguments"] for part in parts))

    def _response(self) -> None:
        body = {"input": "Name a colour.", "temperature": 0, "max_output_tokens": 12}
        answer = self._post("/v1/responses", body)
        assert answer["object"] == "response"
        assert answer["output"][-1]["content"][0]["text"]

    def _response_stream(self) -> None:
        body = {"input": "Name a colour.", "temperature": 0, "max_output_tokens": 12}
        events = list(self._events("/v1/responses", body))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        answer = self._post("/v1/responses", body)
        assert "".join(deltas) == answer["output"][-1]["content"][0]["text"]

    def _tokenize(self) -> None:
        tokens = self._post("/tokenize", {"prompt": "a b", "add_special_tokens": False})["tokens"]
        assert self._post("/detokenize", {"tokens": tokens})["prompt"] == "a b"

    def _errors(self) -> None:
        for body, status, param in (
            (self._body(temperature=9), 400, "temperature"),
            (self._body(model="no-such-model"), 404, "model"),
            (self._body(messages=[]), 400, "messages"),
        ):
            error = self._post("/v1/chat/completions", body, status)["error"]
            assert set(error) >= {"message", "type", "param", "code"}
            assert error["param"] == param

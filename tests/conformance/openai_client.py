"""The checks of one version of the `openai` client, run by the Python that has it.

    python openai_client.py URL MODEL KEY

Prints a JSON object for each check. Imports nothing but that client and the standard library, and
runs with 0.28, with every 1.x and with what came after; a version is asked for what it knows.
"""

import inspect
import json
import sys
import traceback

import openai

IS_OLD = not hasattr(openai, "OpenAI")
MESSAGES = [{"role": "user", "content": "Name a colour."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class OldChecks:
    """0.28: module-level settings and `openai.ChatCompletion.create`."""

    def __init__(self, url, model, key):
        openai.api_base, openai.api_key = f"{url}/v1", key
        self.model = model

    def checks(self):
        return {
            "models": self.models,
            "chat": self.chat,
            "chat stream = answer": self.chat_stream,
            "completion": self.completion,
            "completion stream = answer": self.completion_stream,
            "function call": self.function,
            "function call stream": self.function_stream,
            "errors": self.errors,
        }

    def models(self):
        assert self.model in [card["id"] for card in openai.Model.list()["data"]]

    def ask(self, **fields):
        asked = {"messages": MESSAGES, "temperature": 0, "max_tokens": 12, **fields}
        return openai.ChatCompletion.create(model=self.model, **asked)

    def chat(self):
        assert self.ask()["choices"][0]["message"]["content"]

    def chat_stream(self):
        chunks = [chunk["choices"][0]["delta"] for chunk in self.ask(stream=True)]
        text = "".join(delta.get("content", "") for delta in chunks)
        assert text == self.ask()["choices"][0]["message"]["content"]

    def complete(self, **fields):
        return openai.Completion.create(
            model=self.model, prompt="Once", temperature=0, max_tokens=8, **fields
        )

    def completion(self):
        assert self.complete()["choices"][0]["text"]

    def completion_stream(self):
        text = "".join(chunk["choices"][0]["text"] for chunk in self.complete(stream=True))
        assert text == self.complete()["choices"][0]["text"]

    def call(self, **fields):
        named = {"name": "weather"}
        functions = [TOOL["function"]]
        return self.ask(functions=functions, function_call=named, max_tokens=80, **fields)

    def function(self):
        call = self.call()["choices"][0]["message"]["function_call"]
        assert call["name"] == "weather"
        assert json.loads(call["arguments"])["city"] in ("Paris", "Rome")
        earlier = {"role": "assistant", "content": None, "function_call": call}
        result = {"role": "function", "name": "weather", "content": "sunny"}
        answer = self.ask(messages=[*MESSAGES, earlier, result])
        assert answer["choices"][0]["message"]["content"]

    def function_stream(self):
        parts = [
            chunk["choices"][0]["delta"].get("function_call", {})
            for chunk in self.call(stream=True)
        ]
        assert "".join(part.get("name", "") for part in parts) == "weather"
        arguments = "".join(part.get("arguments", "") for part in parts)
        assert json.loads(arguments)["city"] in ("Paris", "Rome")

    def errors(self):
        param = None
        try:
            openai.ChatCompletion.create(model="no-such-model", messages=MESSAGES)
        except openai.error.InvalidRequestError as error:
            param = error.param
        assert param == "model"


class Checks:
    """From 1.0 on."""

    def __init__(self, url, model, key):
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, timeout=120, max_retries=0)
        self.model = model

    def checks(self):
        checks = {
            "models": self.models,
            "chat": self.chat,
            "chat stream = answer": self.chat_stream,
            "completion": self.completion,
            "completion stream = answer": self.completion_stream,
            "errors": self.errors,
        }
        if "tools" in inspect.signature(self.client.chat.completions.create).parameters:
            checks["tool call required"] = self.tool
        if hasattr(self.client, "responses"):
            checks["response"] = self.response
            checks["response stream = answer"] = self.response_stream
        return checks

    def models(self):
        assert self.model in [card.id for card in self.client.models.list().data]

    def ask(self, **fields):
        return self.client.chat.completions.create(
            model=self.model, messages=MESSAGES, temperature=0, max_tokens=40, **fields
        )

    def chat(self):
        answer = self.ask()
        assert answer.choices[0].message.content
        assert answer.usage.completion_tokens > 0

    def chat_stream(self):
        deltas = [chunk.choices[0].delta for chunk in self.ask(stream=True)]
        text = "".join(delta.content or "" for delta in deltas)
        assert text == self.ask().choices[0].message.content

    def complete(self, **fields):
        return self.client.completions.create(
            model=self.model, prompt="Once", temperature=0, max_tokens=8, **fields
        )

    def completion(self):
        assert self.complete().choices[0].text

    def completion_stream(self):
        text = "".join(chunk.choices[0].text for chunk in self.complete(stream=True))
        assert text == self.complete().choices[0].text

    def tool(self):
        choice = {"type": "function", "function": {"name": "weather"}}
        (call,) = self.ask(tools=[TOOL], tool_choice=choice).choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")

    def respond(self):
        fields = {"input": "Name a colour.", "temperature": 0, "max_output_tokens": 12}
        return {"model": self.model, **fields}

    def response(self):
        assert self.client.responses.create(**self.respond()).output_text

    def response_stream(self):
        with self.client.responses.stream(**self.respond()) as stream:
            deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        assert "".join(deltas) == self.client.responses.create(**self.respond()).output_text

    def errors(self):
        param = None
        try:
            self.client.chat.completions.create(model="no-such-model", messages=MESSAGES)
        except openai.NotFoundError as error:
            param = error.response.json()["error"]["param"]
        assert param == "model"


def main():
    kind = OldChecks if IS_OLD else Checks
    for name, check in kind(*sys.argv[1:4]).checks().items():
        finding = {"check": name, "is_good": True, "detail": ""}
        try:
            check()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            detail = f"{type(error).__name__}: {error} ({where.name}:{where.lineno})"
            finding.update(is_good=False, detail=detail[:500])
        print(json.dumps(finding), flush=True)


if __name__ == "__main__":
    main()

"""From the fields that ask for a form to its grammar, and its compilation off the event loop."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from octavo_engine.errors import RequestError
from octavo_engine.server.errors import ApiError
from octavo_engine.server.structure_fields import (
    JsonObjectFormat,
    JsonSchemaResponse,
    StructuredOutputs,
    StructureFields,
)
from octavo_engine.structured.compiler import GrammarCompiler
from octavo_engine.structured.grammars import (
    Grammar,
    choice_grammar,
    json_grammar,
    lark_grammar,
    regex_grammar,
)

COMPILE_LIMIT_S = 5.0
_MAX_COMPILING = 2
"""At a time: a flood of costly grammars takes no more of the machine."""


@dataclass(frozen=True)
class GrammarCheck:
    """A grammar that has to compile before a request runs."""

    grammar: str
    param: str
    """The field that asks for it."""


def answer_grammar(fields: StructureFields) -> tuple[Grammar, str] | None:
    """The form asked for and the field that asks; None: any text.

    Raises `RequestError` naming the field.
    """
    for name in ("json", "regex", "choice", "grammar"):
        value = getattr(fields, f"guided_{name}")
        if value is not None:
            return _grammar(name, value, f"guided_{name}"), f"guided_{name}"
    if fields.structured_outputs is not None:
        return _of_structured_outputs(fields.structured_outputs)
    match fields.response_format:
        case JsonObjectFormat():
            return json_grammar({"type": "object"}, "response_format"), "response_format"
        case JsonSchemaResponse(json_schema=form):
            param = "response_format.json_schema.schema"
            return json_grammar(form.schema_, param), param
    return None


def _of_structured_outputs(form: StructuredOutputs) -> tuple[Grammar, str]:
    if form.json_object:
        param = "structured_outputs.json_object"
        return json_grammar({"type": "object"}, param), param
    values = {
        "json": form.json_,
        "regex": form.regex,
        "choice": form.choice,
        "grammar": form.grammar,
    }
    ((name, value),) = [(name, value) for name, value in values.items() if value is not None]
    param = f"structured_outputs.{name}"
    return _grammar(name, value, param), param


def _grammar(name: str, value: Any, param: str) -> Grammar:
    make: dict[str, Callable[[Any, str], Grammar]] = {
        "json": json_grammar,
        "regex": regex_grammar,
        "choice": choice_grammar,
        "grammar": lark_grammar,
    }
    return make[name](value, param)


class GrammarChecks:
    """Compiles the grammars of requests on threads of its own, each with a deadline."""

    def __init__(self, compiler: GrammarCompiler, limit_s: float = COMPILE_LIMIT_S) -> None:
        self._compiler = compiler
        self._limit_s = limit_s
        self._threads = ThreadPoolExecutor(_MAX_COMPILING, thread_name_prefix="octavo-grammar")

    async def check(self, asked: GrammarCheck) -> float:
        """Seconds that it took. Raises `ApiError`: 400 for what does not compile in time, 503 when
        others' grammars were in the way."""
        if not self._compiler.knows_words:
            # Once, and no fault of this grammar: the deadline is not for it.
            with suppress(ValueError):  # `check` says it again, with the field
                await asyncio.to_thread(self._compiler.learn_words)
        began_s, param = time.monotonic(), asked.param
        work = self._threads.submit(self._compiler.check, asked.grammar, param)
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(work)), self._limit_s)
        except RequestError as error:
            raise ApiError(400, str(error), param=error.param, code="invalid_grammar") from error
        except TimeoutError as error:
            if work.cancel():
                message = "too many structured outputs are being compiled"
                raise ApiError(503, message, code="overloaded", retry_after_s=5) from error
            message = f"{param} takes more than {self._limit_s:g} s to compile: make it simpler"
            raise ApiError(400, message, param=param, code="invalid_grammar") from error
        return time.monotonic() - began_s

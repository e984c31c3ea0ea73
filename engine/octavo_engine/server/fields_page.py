"""The reference page of request fields, made from the requests' own definitions.

python -m octavo_engine.server.fields_page > engine/REQUEST_FIELDS.md
"""

import json
import sys

from octavo_engine.server.generation_routes import BODIES
from octavo_engine.server.request_fields import GenerationFields

_INTRODUCTION = """\
# Request fields

Made from the code by `make request-fields`.

A field that is in none of the lists is refused with a 400 that names it (`unknown_parameter`), as
OpenAI does. A field that is known but not supported is refused with a 400 that names it
(`unsupported_parameter`), unless its value asks for nothing. `null` always counts as not given.

A body is sent as `content-type: application/json`; any other type is a 415.

Of forms: a schema is followed in all, `strict` or not; its `name` and `description` are told to
nobody. Of prompts: `max_tokens: 0` on /v1/completions generates nothing; with `echo` and `logprobs`
the prompt is scored.

Of tools:

- Where a call is required or named its arguments follow the function's schema, `strict` or not.
  With `auto` those of a function with `strict: true` do; of others they are what the model writes,
  unless a strict one stands beside them: then they follow theirs as far as they can be.
  Without `strict` a function is not strict, in /v1/responses neither.
- A `strict` schema is followed in all; keywords that cannot be (`not`, `uniqueItems`, ...) are a
  400 that names them. Other schemas are followed as far as they can be.
- In the formats `llama3_json` and `json` the whole answer is calls or is none. With a `strict`
  function an answer in JSON may then not begin with a key `id`, `type`, `arguments` or
  `parameters`, nor with `name` and a function's own name, which may begin a call;
  `response_format` leaves such answers their place.
- Only functions that may be called are: what looks like a call of another one is content.
- `stop` is looked for in all that the model writes, calls too. `finish_reason` is `tool_calls` only
  when each call is complete; one that a stop string has cut ends with `stop`.
"""


def fields_page() -> str:
    return "\n".join([_INTRODUCTION, *(_section(path, kind) for path, kind in BODIES.items())])


def _section(path: str, kind: type[GenerationFields]) -> str:
    ignored = [name for name in kind.ignored_fields if name in kind.model_fields]
    without_effect = {*ignored, *kind.neutral_words}
    honoured = [name for name in kind.model_fields if name not in without_effect]
    required = [name for name in honoured if kind.model_fields[name].is_required()]
    optional = sorted(name for name in honoured if name not in required)
    lines = [
        f"## POST {path}",
        "",
        f"Required: {_listed(required)}.",
        "",
        f"Supported: {_listed(optional)}.",
        "",
        f"Ignored: {_listed(sorted(ignored))}.",
        "",
        "| known, not supported | values taken, as they ask for nothing |",
        "| --- | --- |",
    ]
    lists = {
        name: ", ".join(f"`{json.dumps(value)}`" for value in values)
        for name, values in kind.neutral_values.items()
    }
    for name, shown in sorted({**lists, **kind.neutral_words}.items()):
        lines.append(f"| `{name}` | {shown or 'none'} |")
    return "\n".join([*lines, ""])


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(fields_page())

"""Writes crds/README.md, the reference of the API, from the CRD; `--check` fails when stale."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
CRD = FOLDER / "inferenceservices.yaml"
PAGE = FOLDER / "README.md"

Schema = Mapping[str, Any]

_INTRODUCTION = """\
# The InferenceService API

<!-- Written by `make crds` from inferenceservices.yaml; edit that. -->

{description}

`{group}/{version}`, kind `{kind}`, short name `{short}`, category `{category}`. The same texts by
`kubectl explain {short}.spec`. The API server checks every rule below at `kubectl apply`, and
its sentence is what you see when it is broken. Examples, each one tested:

{examples}
"""


def page() -> str:
    crd = yaml.safe_load(CRD.read_text(encoding="utf-8"))
    names = crd["spec"]["names"]
    version = crd["spec"]["versions"][0]
    root = version["schema"]["openAPIV3Schema"]
    parts = [
        _INTRODUCTION.format(
            description=root["description"],
            group=crd["spec"]["group"],
            version=version["name"],
            kind=names["kind"],
            short=names["shortNames"][0],
            category=names["categories"][0],
            examples="\n".join(_examples()),
        ),
        "## What you set\n",
        *_fields("spec", root["properties"]["spec"]),
        "\n## Rules\n",
        *_rules("", root),
        "\n## What the operator tells\n",
        *_fields("status", root["properties"]["status"]),
        "\n## Columns of `kubectl get`\n",
        *_columns(version["additionalPrinterColumns"]),
    ]
    return "\n".join(parts) + "\n"


def _examples() -> Iterator[str]:
    for path in sorted((FOLDER / "examples").glob("*.yaml")):
        first_line = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        yield f"- [{path.name}](examples/{path.name}): {first_line}"


def _fields(path: str, schema: Schema) -> Iterator[str]:
    yield "| field | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    yield from _rows(path, schema)


def _rows(path: str, schema: Schema) -> Iterator[str]:
    required = schema.get("required", [])
    for name, inner in schema.get("properties", {}).items():
        field = f"{path}.{name}"
        default = "required" if name in required else _default(inner)
        yield f"| `{field}` | {_type(inner)} | {default} | {_cell(inner['description'])} |"
        items = inner.get("items", {})
        yield from _rows(f"{field}[]" if items else field, items or inner)


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}"
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    return str(schema["type"])


def _default(schema: Schema) -> str:
    default = schema.get("default")
    if default is None or default == {}:
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _rules(path: str, schema: Schema) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", []):
        field = path + rule.get("fieldPath", "")
        yield f"- `{field or 'the object'}`: {rule['message']}"
    for name, inner in schema.get("properties", {}).items():
        yield from _rules(f"{path}.{name}".removeprefix("."), inner)
    if "items" in schema:
        yield from _rules(f"{path}[]", schema["items"])


def _columns(columns: list[Mapping[str, Any]]) -> Iterator[str]:
    yield "| column | shown | meaning |"
    yield "| --- | --- | --- |"
    for column in columns:
        shown = "with `-o wide`" if column.get("priority") else "always"
        meaning = column.get("description", f"`{column['jsonPath']}`")
        yield f"| {column['name'].upper()} | {shown} | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when stale")
    wanted = page()
    if not parser.parse_args().check:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    sys.stderr.write(f"{PAGE} is stale: make crds\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())

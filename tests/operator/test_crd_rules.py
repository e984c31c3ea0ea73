"""Each rule of the CRD is broken by some test, which looks for its sentence."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MODULES = ("test_wrong_*_on_cluster.py", "test_autoscaling_on_cluster.py")
SHORTEST = 20
"""Characters of a part of a sentence that is found in no other by chance."""


def messages(schema: dict[str, Any]) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield rule.get("message") or rule["messageExpression"]
    inner = [*schema.get("properties", {}).values(), schema.get("items")]
    inner.append(schema.get("additionalProperties"))
    for each in inner:
        if isinstance(each, dict):
            yield from messages(each)


def looked_for() -> set[str]:
    """All texts in the modules that apply what is wrong."""
    files = [file for pattern in MODULES for file in FOLDER.glob(pattern)]
    assert len(files) == 4
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and len(node.value) >= SHORTEST
    }


def test_no_rule_goes_unbroken(crd):
    version = crd["spec"]["versions"][0]
    rules = list(messages(version["schema"]["openAPIV3Schema"]))
    assert len(rules) > 70

    found = looked_for()
    assert [rule for rule in rules if not any(text in rule for text in found)] == []

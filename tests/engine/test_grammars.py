"""What grammars let through, byte by byte, without a model."""

import pytest
from tests.engine.byte_tokenizer import EOS_ID, make_tokenizer

from octavo_engine.structured.compiler import GrammarCompiler
from octavo_engine.structured.grammars import json_grammar

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(make_tokenizer)


def takes(compiler: GrammarCompiler, text: str) -> bool:
    """Whether `text` may be a whole answer."""
    matcher = compiler.matcher(json_grammar(SCHEMA, "schema").text())
    try:
        matcher.advance([*text.encode(), EOS_ID])
    except ValueError:
        return False
    return matcher.has_ended


@pytest.mark.parametrize("space", ["", " ", "\n", "\n" + " " * 32])
def test_json_may_be_laid_out(compiler: GrammarCompiler, space: str) -> None:
    assert takes(compiler, f'{{{space}"a":{space}1{space}}}')


@pytest.mark.parametrize("space", ["  ", "\n\n", "\t", "\n" + " " * 33, " " * 100])
@pytest.mark.parametrize("text", ['{_"a": 1}', '{"a":_1}', '{"a": 1_}'])
def test_white_space_has_an_end(compiler: GrammarCompiler, text: str, space: str) -> None:
    """Else a model without a plan writes it until its tokens are used up."""
    assert takes(compiler, text.replace("_", ""))
    assert not takes(compiler, text.replace("_", space))

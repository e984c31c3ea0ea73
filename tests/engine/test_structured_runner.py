"""Structured output in a real engine over a random model: whatever it draws, the text follows.

Two steps are in flight throughout, so each mask is of tokens that were not known when its step was
scheduled.
"""

import json
import re
from pathlib import Path

import jsonschema
import msgspec
import pytest
from tests.engine.byte_model import VOCAB_SIZE, save_byte_model
from tests.engine.byte_tokenizer import EOS_ID, ids_of
from tests.engine.limited_runner import Limited

from octavo_engine.batch import Runner
from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from octavo_engine.core.engine import EngineCore
from octavo_engine.errors import RequestError
from octavo_engine.messages import EngineRequest, RequestDelta
from octavo_engine.runner.build import build_runner
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.structured.grammars import (
    Grammar,
    choice_grammar,
    json_grammar,
    lark_grammar,
    regex_grammar,
)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", "déf"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
DRAWN = SamplingParams(max_tokens=200, seed=3, eos_token_ids=[EOS_ID])


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory):
    folder = save_byte_model(tmp_path_factory.mktemp("byte_model"))
    runner = build_runner(config_of(folder))
    yield runner
    runner.close()


def config_of(folder: Path) -> EngineConfig:
    return EngineConfig(
        model=ModelSettings(path=str(folder), device="cpu"),
        cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02),
    )


def run(
    runner: Runner, wanted: list[SamplingParams], prompt: str = "Say:"
) -> tuple[dict[tuple[int, int], list[RequestDelta]], EngineCore]:
    """The deltas of each request and sequence."""
    core = EngineCore(runner, SchedulerSettings(max_num_seqs=8))
    for idx, params in enumerate(wanted):
        core.submit(
            EngineRequest(request_id=str(idx), prompt_token_ids=ids_of(prompt), params=params)
        )
    deltas: dict[tuple[int, int], list[RequestDelta]] = {}
    while core.has_work:
        for delta in core.step():
            deltas.setdefault((int(delta.request_id), delta.index), []).append(delta)
    core.check_integrity()
    return deltas, core


def text_of(deltas: list[RequestDelta]) -> str:
    assert deltas[-1].finish_reason == "stop", deltas[-1]
    ids = [token_id for delta in deltas for token_id in delta.token_ids]
    assert ids[-1] == EOS_ID
    return bytes(ids[:-1]).decode()


def following(grammar: Grammar, **changes: object) -> SamplingParams:
    return msgspec.structs.replace(DRAWN, grammar=grammar.text(), **changes)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_a_json_schema_is_followed(runner, temperature):
    person = json_grammar(PERSON, "schema")
    wanted = [following(person, temperature=temperature, seed=seed) for seed in range(4)]
    deltas, _ = run(runner, wanted)
    for sequence in deltas.values():
        jsonschema.validate(json.loads(text_of(sequence)), PERSON)


def test_choices_regular_expressions_and_grammars_are_followed(runner):
    wanted = [
        following(choice_grammar(["yes", "no", "näh"], "choice")),
        following(regex_grammar(r"[0-9]{3}-[a-f]{2,4}", "regex")),
        following(lark_grammar('root ::= ("a" | "b") tail\ntail ::= "cd" | "e"', "grammar")),
        following(lark_grammar('start: "x" /[0-9]{2}/ "y"', "grammar")),
    ]
    deltas, _ = run(runner, wanted)
    texts = [text_of(deltas[idx, 0]) for idx in range(4)]
    assert texts[0] in ("yes", "no", "näh")
    for text, pattern in zip(
        texts[1:], [r"[0-9]{3}-[a-f]{2,4}", "[ab](cd|e)", r"x\d\dy"], strict=True
    ):
        assert re.fullmatch(pattern, text), (text, pattern)


def test_each_of_n_follows_on_its_own_and_has_logprobs(runner):
    params = following(json_grammar(PERSON, "schema"), n=3, logprobs=2)
    deltas, _ = run(runner, [params])
    texts = [text_of(deltas[0, index]) for index in range(3)]
    assert len(set(texts)) == 3
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)
    for delta in deltas[0, 1]:
        assert delta.logprobs is not None
        assert delta.logprobs[0].chosen.token_id == delta.token_ids[0]


def test_neighbours_without_a_grammar_draw_as_alone(runner):
    free = msgspec.structs.replace(DRAWN, max_tokens=30, eos_token_ids=[])
    alone = run(runner, [free])[0][0, 0]
    beside = run(runner, [following(json_grammar(PERSON, "schema")), free])[0][1, 0]
    assert [d.token_ids for d in beside] == [d.token_ids for d in alone]


def test_preemption_changes_no_token(runner):
    person = json_grammar(PERSON, "schema")
    wanted = [following(person, seed=seed, temperature=5.0) for seed in range(8)]
    plenty, _ = run(runner, wanted)
    tight, core = run(Limited(runner, 9), wanted)
    assert core.stats().preemptions_total > 0
    assert {key: text_of(value) for key, value in tight.items()} == {
        key: text_of(value) for key, value in plenty.items()
    }


def test_a_grammar_wins_over_limits_that_leave_it_nothing(runner):
    params = following(choice_grammar(["yes"], "choice"), allowed_token_ids=[65])
    deltas, _ = run(runner, [params])
    assert text_of(deltas[0, 0]) == "yes"


@pytest.mark.parametrize("word", ["yes", "no"])
@pytest.mark.parametrize("kind", ["bias", "forbidden"])
def test_among_what_a_grammar_allows_a_rows_own_changes_count(runner, word, kind):
    other = "no" if word == "yes" else "yes"
    change = {
        "bias": {"logit_bias": {ids_of(word)[0]: 100.0}},
        "forbidden": {"bad_words_token_ids": [ids_of(other)[:1]]},
    }[kind]
    params = following(choice_grammar(["yes", "no"], "choice"), **change)
    deltas, _ = run(runner, [params])
    assert text_of(deltas[0, 0]) == word


@pytest.mark.parametrize("change", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_limits_that_go_on_behind_the_end_are_refused(change):
    with pytest.raises(RequestError, match=next(iter(change))):
        following(choice_grammar(["yes"], "choice"), **change).verify(VOCAB_SIZE)


def test_a_text_cut_by_max_tokens_is_a_beginning(runner):
    deltas, _ = run(runner, [following(choice_grammar(["yesterday"], "choice"), max_tokens=4)])
    assert [d.token_ids[0] for d in deltas[0, 0]] == ids_of("yest")
    assert deltas[0, 0][-1].finish_reason == "length"


def test_a_grammar_that_does_not_compile_fails_its_own_request(runner):
    broken = following(Grammar({"lark_grammar": "start: ((("}))
    deltas, _ = run(runner, [broken, following(choice_grammar(["ok"], "choice"))])
    (failed,) = deltas[0, 0]
    assert failed.finish_reason == "error"
    assert text_of(deltas[1, 0]) == "ok"


def test_a_step_that_is_too_complex_fails_its_own_request(runner, monkeypatch):
    from octavo_engine.structured.compiler import Matcher

    monkeypatch.setattr(Matcher, "error", lambda self: "too complex")
    deltas, _ = run(runner, [following(choice_grammar(["ok"], "choice")), DRAWN])
    assert deltas[0, 0][-1].finish_reason == "error"
    assert deltas[1, 0][-1].finish_reason in ("stop", "length")

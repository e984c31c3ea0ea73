"""Offline use over the fake runner and a byte tokenizer: shapes, order, errors."""

import re
import subprocess
import sys
from typing import Any
from unittest.mock import Mock, patch

import pytest
from tests.engine import byte_tokenizer
from tests.engine.core_driver import reference
from tests.engine.fake_runner import FakeRunner

from octavo_engine.batch import Batch
from octavo_engine.config import SchedulerSettings
from octavo_engine.core.in_process import InProcessEngine
from octavo_engine.errors import ConfigError, EngineDead, RequestError
from octavo_engine.messages import EngineRequest
from octavo_engine.offline.client import Job, run_jobs
from octavo_engine.offline.llm import LLM, config_from_options
from octavo_engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def make_llm(runner: FakeRunner | None = None) -> LLM:
    runner = runner or FakeRunner()
    runner.vocab_size = byte_tokenizer.VOCAB_SIZE
    engine = InProcessEngine(runner, SchedulerSettings())
    return LLM.from_parts(engine, byte_tokenizer.make_tokenizer())


def expected(prompt: str, params: SamplingParams = GREEDY) -> list[int]:
    ids = byte_tokenizer.ids_of(prompt)
    return reference(EngineRequest(request_id="", prompt_token_ids=ids, params=params), 0, 1000)


def test_texts_ids_and_dicts_are_prompts_and_outputs_come_in_their_order():
    ids = byte_tokenizer.ids_of("Hello")
    with make_llm() as llm:
        outputs = llm.generate(
            ["Hello", ids, {"prompt_token_ids": ids}, {"prompt": "Bye"}], GREEDY, use_tqdm=False
        )
        assert [o.prompt for o in outputs] == ["Hello", None, None, "Bye"]
        assert [o.prompt_token_ids for o in outputs[:3]] == [ids] * 3
        tokens = [o.outputs[0].token_ids for o in outputs]
        assert tokens == [expected("Hello")] * 3 + [expected("Bye")]
        assert outputs[0].outputs[0].text == llm.get_tokenizer().decode(tokens[0])
        assert outputs[0].outputs[0].finish_reason == "length"
        assert outputs[0].finished


@pytest.mark.parametrize("prompt", ["Hello", byte_tokenizer.ids_of("Hello")])
def test_a_single_prompt_needs_no_list(prompt):
    with make_llm() as llm:
        (output,) = llm.generate(prompt, GREEDY, use_tqdm=False)
        assert output.outputs[0].token_ids == expected("Hello")


def test_many_more_prompts_than_rows():
    prompts = [f"prompt number {i}" for i in range(100)]
    with make_llm(FakeRunner(max_num_seqs=3)) as llm:
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert [o.prompt for o in outputs] == prompts
        assert all(
            o.outputs[0].token_ids == expected(p) for o, p in zip(outputs, prompts, strict=True)
        )


def test_each_prompt_can_have_its_own_parameters():
    params = [SamplingParams(temperature=0.0, max_tokens=n) for n in (1, 5)]
    with make_llm() as llm:
        outputs = llm.generate(["a", "b"], params, use_tqdm=False)
        assert [len(o.outputs[0].token_ids) for o in outputs] == [1, 5]
        with pytest.raises(RequestError, match="2 sets of sampling parameters for 3 prompts"):
            llm.generate(["a", "b", "c"], params, use_tqdm=False)


def test_n_sequences_with_logprobs():
    params = SamplingParams(n=3, seed=1, max_tokens=6, logprobs=1, prompt_logprobs=0)
    with make_llm() as llm:
        (output,) = llm.generate("Hello", params, use_tqdm=False)
    assert [c.index for c in output.outputs] == [0, 1, 2]
    for completion in output.outputs:
        assert completion.logprobs is not None
        assert [next(iter(p)) for p in completion.logprobs] == completion.token_ids
        total = sum(
            p[t].logprob for p, t in zip(completion.logprobs, completion.token_ids, strict=True)
        )
        assert completion.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == 5


def test_a_part_of_a_character_is_told_by_its_bytes():
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    with make_llm() as llm:
        (output,) = llm.generate("aé", params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    chosen = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    texts = [position[token_id].decoded_token for token_id, position in chosen if position]
    assert texts == ["bytes:\\xc3", "bytes:\\xa9"]


def test_the_bar_counts_requests_and_shows_tokens_per_second(capsys):
    with make_llm() as llm:
        llm.generate(["Hello", "Bye"], GREEDY)
        shown = capsys.readouterr().err
        llm.generate(["Hello", "Bye"], GREEDY, use_tqdm=False)
    rate = re.search(r" 2/2 (\d+\.\d) tokens/s", " ".join(shown.split()))
    assert rate is not None, shown
    assert float(rate[1]) > 0
    assert capsys.readouterr().err == ""


def test_a_stop_string_ends_the_text_before_it():
    with make_llm() as llm:
        (whole,) = llm.generate("Hello", GREEDY, use_tqdm=False)
        text = whole.outputs[0].text
        stop = text[5:7]
        params = SamplingParams(temperature=0.0, max_tokens=12, stop=stop)  # type: ignore[arg-type]  # one string or several
        (cut,) = llm.generate("Hello", params, use_tqdm=False)
        completion = cut.outputs[0]
        assert completion.text == text[: text.index(stop)]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


def test_the_other_name_for_all_tokens_is_understood():
    batches: list[Batch] = []
    with make_llm(FakeRunner(batches=batches)) as llm:
        llm.generate("Hello", SamplingParams(max_tokens=1, top_k=-1), use_tqdm=False)
    assert [row.params.top_k for batch in batches for row in batch.admitted] == [0]


def test_chat_uses_the_models_template_for_one_conversation_or_many():
    talk = [{"role": "user", "content": "Hi"}]
    with make_llm() as llm:
        (one,) = llm.chat(talk, GREEDY, use_tqdm=False)
        two = llm.chat([talk, talk], GREEDY, use_tqdm=False)
        assert one.prompt == "<|start|>user:Hi<|end|><|start|>assistant:"
        assert one.prompt_token_ids[0] == byte_tokenizer.START_ID
        assert [o.outputs[0].token_ids for o in two] == [one.outputs[0].token_ids] * 2


REFUSED: list[tuple[Any, Any, str]] = [
    (["fine", []], GREEDY, "prompt 1: the prompt is empty"),
    (["fine", [5, 999]], GREEDY, "prompt 1: prompt token id 999 is outside the vocabulary"),
    (["fine", [1.5]], GREEDY, "prompt 1: 1.5 is no token id"),
    (["fine", "a\ud800"], GREEDY, "prompt 1: the text has half of a surrogate pair"),
    (["fine", 3.5], GREEDY, "prompt 1: a prompt is a text"),
    ("a", SamplingParams(temperature="hot"), "prompt 0: sampling parameters: .* `float`"),  # type: ignore[arg-type]  # a wrong type is the case
    (["a", "b"], [GREEDY, SamplingParams(max_tokens=-1)], "prompt 1: max_tokens must be 0 or more"),
    (["a", "b"], [GREEDY, "hot"], "prompt 1: 'hot' is no SamplingParams"),
]


@pytest.mark.parametrize(("prompts", "params", "words"), REFUSED)
def test_a_prompt_that_cannot_be_served_is_refused_before_anything_runs(prompts, params, words):
    runner = FakeRunner(batches=[])
    with make_llm(runner) as llm:
        with pytest.raises(RequestError, match=words):
            llm.generate(prompts, params, use_tqdm=False)
        assert runner.batches == []


def test_a_conversation_that_cannot_be_served_is_named():
    talks = [[{"role": "user", "content": text}] for text in ("fine", "\ud800")]
    with make_llm() as llm, pytest.raises(RequestError, match=r"conversation 1: .*surrogate"):
        llm.chat(talks, GREEDY, use_tqdm=False)


def test_what_goes_wrong_with_one_prompts_text_ends_that_one_alone():
    """Of three sequences one has text that cannot be made: the request ends, the others go on."""
    with make_llm() as llm:
        tokenizer = llm.get_tokenizer()
        make, made = tokenizer.detokenizer, []

        def detokenizer(prompt_token_ids: list[int], **options: Any) -> Any:
            made.append(make(prompt_token_ids, **options))
            if bytes(prompt_token_ids) == b"bad" and len(made) == 3:
                made[-1].push = Mock(side_effect=["x", UnicodeError("no text")])
            return made[-1]

        with patch.object(tokenizer, "detokenizer", detokenizer):
            params = SamplingParams(temperature=0.0, max_tokens=12, n=2)
            outputs = llm.generate(["Hello", "bad", "Bye"], params, use_tqdm=False)
        good, bad, other = outputs
        assert [c.token_ids for c in good.outputs] == [expected("Hello")] * 2
        assert [c.token_ids for c in other.outputs] == [expected("Bye")] * 2
        assert {(c.finish_reason, c.error) for c in bad.outputs} == {
            ("error", "UnicodeError: no text")
        }
        assert llm.generate("Hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def test_a_job_that_the_door_refuses_late_ends_alone():
    with make_llm() as llm:
        jobs = [
            Job(None, EngineRequest(request_id=name, prompt_token_ids=ids, params=GREEDY))
            for name, ids in (("a", [5]), ("b", []), ("c", [6]))
        ]
        outputs = {
            o.request_id: o.outputs[0] for o in run_jobs(llm._engine, llm.get_tokenizer(), jobs)
        }
    assert outputs["b"].error == "the prompt is empty"
    assert [outputs[name].finish_reason for name in "abc"] == ["length", "error", "length"]


def test_a_dead_engine_is_an_error_and_not_an_empty_answer():
    runner = FakeRunner(raise_in_step=lambda batch: RuntimeError("device lost"))
    with make_llm(runner) as llm, pytest.raises(EngineDead, match="device lost"):
        llm.generate("a", GREEDY, use_tqdm=False)


def test_an_interrupted_run_leaves_nothing_behind():
    llm = make_llm(FakeRunner(step_seconds=lambda batch: 0.001))
    jobs = iter(["a", "b"])

    def interrupt(num_tokens: int) -> None:
        raise KeyboardInterrupt

    requests = (
        Job(
            None,
            EngineRequest(
                request_id=p, prompt_token_ids=[5], params=SamplingParams(max_tokens=900)
            ),
        )
        for p in jobs
    )
    with pytest.raises(KeyboardInterrupt):
        list(run_jobs(llm._engine, llm.get_tokenizer(), requests, interrupt))
    (output,) = llm.generate("Hello", GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == expected("Hello")
    assert llm._engine.stats().finished_total["abort"] == 2
    llm.close()


def test_options_are_sorted_into_their_sections_and_unknown_ones_refused():
    config = config_from_options("m", {"dtype": "float32", "block_size": 32, "max_num_seqs": 4})
    assert (config.model.path, config.model.dtype) == ("m", "float32")
    assert (config.cache.block_size, config.scheduler.max_num_seqs) == (32, 4)
    with pytest.raises(ConfigError, match="'blocksize'; did you mean 'block_size'"):
        config_from_options("m", {"blocksize": 32})
    with pytest.raises(ConfigError, match=r"Expected `int`, got `str` - at `\$.block_size`"):
        config_from_options("m", {"block_size": "large"})


def test_importing_the_package_loads_no_torch():
    code = (
        "import sys, octavo_engine; from octavo_engine import SamplingParams; "
        "SamplingParams(); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_scheduler_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; "
        "import octavo_engine.core.in_process, octavo_engine.core.engine"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""What a request asks to change in its logits, and that draws depend on seed and position alone."""

from typing import Any

import pytest
import torch

from octavo_engine.batch import AdmittedRow
from octavo_engine.runner.request_table import RequestTable
from octavo_engine.sampler import Sampler, SampleWork
from octavo_engine.sampling_params import SamplingParams

VOCAB_SIZE = 50
CPU = torch.device("cpu")


class Bench:
    """A sampler over a table; each row is admitted with its own history."""

    def __init__(self) -> None:
        self.table = RequestTable(
            max_num_rows=8, max_model_len=64, num_groups=1, block_size=16, device=CPU
        )
        self.sampler = Sampler(VOCAB_SIZE, CPU)

    def admit(
        self, row: int, history: list[int], *, num_prompt: int | None = None, **params: Any
    ) -> SampleWork:
        admitted = AdmittedRow(
            row=row,
            token_ids=history,
            num_prompt_tokens=len(history) if num_prompt is None else num_prompt,
            params=SamplingParams(**{"temperature": 0.0, **params}),
            seed=params.get("seed", 0),
            block_tables=[[]],
        )
        self.table.admit(admitted)
        self.sampler.admit(row, admitted.params)
        return SampleWork(row=row, info=self.table.info(row), position=len(history))

    def draw(self, logits: torch.Tensor, work: list[SampleWork]) -> list[int]:
        return self.sampler.sample(logits.clone(), work, self.table).token_ids.tolist()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def falling(*, top: list[int]) -> torch.Tensor:
    """Logits of one row whose most likely ids are `top`, in this order."""
    logits = torch.zeros(1, VOCAB_SIZE)
    for rank, token in enumerate(top):
        logits[0, token] = 10.0 - rank
    return logits


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}])
def test_greedy_takes_the_lowest_id_of_a_tie(bench: Bench, params: dict[str, Any]) -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [41, 7, 23]] = 5.0
    assert bench.draw(logits, [bench.admit(0, [1], **params)]) == [7]


def test_allowed_ids_exclude_all_others(bench: Bench) -> None:
    work = bench.admit(0, [1], allowed_token_ids=[30, 31])
    assert bench.draw(falling(top=[5, 31, 30]), [work]) == [31]


def test_bias_is_added(bench: Bench) -> None:
    work = bench.admit(0, [1], logit_bias={9: 50.0})
    assert bench.draw(falling(top=[5]), [work]) == [9]


def test_a_bias_can_forbid(bench: Bench) -> None:
    work = bench.admit(0, [1], logit_bias={5: -100.0})
    assert bench.draw(falling(top=[5, 6]), [work]) == [6]


def test_ending_ids_wait_for_min_tokens(bench: Bench) -> None:
    params = {"min_tokens": 2, "eos_token_ids": [5], "stop_token_ids": [6], "num_prompt": 2}
    logits = falling(top=[5, 6, 7])
    assert bench.draw(logits, [bench.admit(0, [1, 1, 9], **params)]) == [7]
    assert bench.draw(logits, [bench.admit(0, [1, 1, 9, 9], **params)]) == [5]


def test_a_single_bad_word_is_never_drawn(bench: Bench) -> None:
    work = bench.admit(0, [1], bad_words_token_ids=[[5]])
    assert bench.draw(falling(top=[5, 6]), [work]) == [6]


@pytest.mark.parametrize(
    ("output", "expected"),
    [([3, 4], 6), ([4], 5), ([4, 3], 5), ([9, 3, 4], 6), ([3, 4, 9], 5)],
)
def test_a_bad_words_last_id_is_forbidden_after_the_others(
    bench: Bench, output: list[int], expected: int
) -> None:
    work = bench.admit(
        0, [1, 3, *output], num_prompt=2, bad_words_token_ids=[[3, 4, 5], [8, 8, 8, 6]]
    )
    assert bench.draw(falling(top=[5, 6]), [work]) == [expected]


@pytest.mark.parametrize("temperature", [1e-39, 1e-20, 9e-6])
def test_a_temperature_of_almost_nothing_is_greedy(bench: Bench, temperature: float) -> None:
    """Its inverse may be no number of float32."""
    work = [bench.admit(0, [1], temperature=temperature, top_p=0.9)]
    assert bench.draw(falling(top=[5, 6]), work) == [5]
    assert bench.draw(falling(top=[5, 6]) - 90.0, work) == [5]


def test_repetition_penalty_counts_prompt_and_output(bench: Bench) -> None:
    logits = falling(top=[5, 6, 7])
    work = bench.admit(0, [5, 6], num_prompt=1, repetition_penalty=2.0)
    assert bench.draw(logits, [work]) == [7]


def test_repetition_penalty_makes_a_negative_logit_more_negative(bench: Bench) -> None:
    logits = torch.full((1, VOCAB_SIZE), -5.0)
    logits[0, 5], logits[0, 6] = -1.0, -1.5
    assert bench.draw(logits, [bench.admit(0, [5], repetition_penalty=2.0)]) == [6]


def test_frequency_penalty_counts_the_output_only(bench: Bench) -> None:
    logits = falling(top=[5, 6])
    penalised = bench.admit(0, [1, 5, 5, 5], num_prompt=1, frequency_penalty=0.5)
    assert bench.draw(logits, [penalised]) == [6]
    in_prompt = bench.admit(1, [1, 5, 5, 5], frequency_penalty=0.5)
    assert bench.draw(logits, [in_prompt]) == [5]


@pytest.mark.parametrize(("penalty", "expected"), [(0.9, 5), (1.1, 6)])
def test_presence_penalty_counts_once(bench: Bench, penalty: float, expected: int) -> None:
    work = bench.admit(0, [1, 5, 5, 5], num_prompt=1, presence_penalty=penalty)
    assert bench.draw(falling(top=[5, 6]), [work]) == [expected]


def test_a_reused_row_forgets_every_adjustment(bench: Bench) -> None:
    bench.admit(
        0,
        [5, 5],
        num_prompt=1,
        allowed_token_ids=[30],
        logit_bias={9: 50.0},
        bad_words_token_ids=[[5]],
        repetition_penalty=5.0,
        presence_penalty=2.0,
        min_tokens=9,
        eos_token_ids=[5],
    )
    bench.sampler.release(0)
    assert bench.draw(falling(top=[5, 6]), [bench.admit(0, [1])]) == [5]


def test_adjustments_of_one_row_leave_its_neighbours_alone(bench: Bench) -> None:
    work = [bench.admit(0, [1], allowed_token_ids=[30]), bench.admit(1, [1])]
    assert bench.draw(falling(top=[5]).repeat(2, 1), work) == [30, 5]


@pytest.mark.parametrize("field", ["allowed_token_ids", "stop_token_ids"])
def test_an_id_outside_the_vocabulary_is_named(bench: Bench, field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}.*50"):
        bench.admit(0, [1], min_tokens=1, **{field: [VOCAB_SIZE]})


def random_logits(num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))


def test_a_draw_depends_on_seed_and_position_not_on_the_batch(bench: Bench) -> None:
    logits = random_logits(6)
    params = {"temperature": 1.3, "top_p": 0.9}
    work = [bench.admit(row, [1] * (row + 1), seed=row, **params) for row in range(6)]
    together = bench.draw(logits, work)
    alone = [bench.draw(logits[row : row + 1], [work[row]])[0] for row in range(6)]
    backwards = bench.draw(logits.flip(0), work[::-1])
    assert together == alone == backwards[::-1]


def test_draws_follow_the_distribution(bench: Bench) -> None:
    logits = torch.full((1, VOCAB_SIZE), -torch.inf)
    shares = torch.tensor([0.5, 0.3, 0.2])
    logits[0, :3] = shares.log()
    num_draws = 2000
    counts = torch.zeros(3)
    for seed in range(num_draws):
        counts[bench.draw(logits, [bench.admit(0, [1], temperature=1.0, seed=seed)])[0]] += 1
    # Three standard deviations of a share of 0.5 over 2,000 draws are 0.034.
    torch.testing.assert_close(counts / num_draws, shares, rtol=0, atol=0.034)


@pytest.mark.parametrize("params", [{"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.5}])
def test_filters_keep_the_likely_tokens_only(bench: Bench, params: dict[str, Any]) -> None:
    logits = torch.full((1, VOCAB_SIZE), -20.0)
    logits[0, :4] = torch.tensor([0.4, 0.3, 0.15, 0.15]).log()
    drawn = {
        bench.draw(logits, [bench.admit(0, [1], temperature=1.0, seed=seed, **params)])[0]
        for seed in range(100)
    }
    assert drawn == {0, 1}


def test_raw_logprobs_are_of_the_models_own_logits(bench: Bench) -> None:
    logits = random_logits(1)
    work = bench.admit(0, [1], logprobs=3, logit_bias={9: 50.0})
    sampled = bench.sampler.sample(logits.clone(), [work], bench.table)
    assert sampled.logprobs is not None
    position = sampled.logprobs.position(0, 3)
    expected = logits[0].log_softmax(-1)
    assert position.chosen.token_id == 9
    assert position.chosen.logprob == pytest.approx(float(expected[9]), abs=1e-5)
    assert position.chosen.rank == int((logits[0] > logits[0, 9]).sum()) + 1
    assert [top.token_id for top in position.top] == logits[0].topk(3).indices.tolist()
    assert [top.rank for top in position.top] == [1, 2, 3]


def test_processed_logprobs_are_after_bias_and_temperature(bench: Bench) -> None:
    logits = random_logits(1)
    work = bench.admit(
        0,
        [1],
        temperature=0.5,
        logprobs=0,
        logprobs_mode="processed",
        logit_bias={9: 50.0},
    )
    sampled = bench.sampler.sample(logits.clone(), [work], bench.table)
    assert sampled.logprobs is not None
    changed = logits[0].clone()
    changed[9] += 50.0
    position = sampled.logprobs.position(0, 0)
    assert position.top == []
    assert position.chosen.logprob == pytest.approx(
        float((changed / 0.5).log_softmax(-1)[9]), abs=1e-5
    )


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"top_k": 2**62}, None),
        ({"top_p": 5e-324}, 7),
        ({"min_p": 5e-324}, None),
        ({"temperature": 1e-300}, 7),
        ({"temperature": 100.0, "min_p": 1.0}, 7),
    ],
)
def test_extreme_values_are_followed_and_break_nothing(
    bench: Bench, params: dict[str, Any], expected: int | None
) -> None:
    """`expected`: the only token that they leave; None: any may come."""
    work = bench.admit(0, [1, 2], **{"temperature": 1.0, **params})
    (token,) = bench.draw(falling(top=[7, 3]), [work])
    assert 0 <= token < VOCAB_SIZE
    assert expected in (None, token)

"""Every family and every kind of quantised checkpoint gives the same tokens on 1, 2 and 4 ranks.

All models run in one set of rank processes (`rank_pool`), on the CPU and in float32.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.engine.mxfp4_checkpoint import save_mxfp4
from tests.engine.rank_pool import Case, Outcome, run_cases
from tests.engine.test_quantization_fixtures import FLIPPED_TOLERANCE, FOLDERS, ROUNDED_INPUTS
from tests.engine.tiny_models import FAMILY_CONFIGS, forced_tokens, prompts, save_tiny

from octavo_engine.sampling_params import SamplingParams

NUM_RANKS = (2, 4)
NUM_NEW = 6
LENGTHS = [26, 40]
"""Beyond the windows of the tiny models, in chunks."""
CHUNK = 16
"""The first step samples nothing: of its last layer no rank sums anything up."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in FAMILY_CONFIGS},
    # 4 ranks have 33 ids each, the last one 30 of its own.
    "padded vocabulary": ("llama-tied-bias", {"vocab_size": 129}),
}
MXFP4 = "gpt_oss in mxfp4"
GPU_RUNNER = ("llama", "gemma2", "qwen3_moe")
GREEDY = SamplingParams(temperature=0.0)
MIXED_PARAMS = [
    GREEDY,
    SamplingParams(temperature=0.0, logprobs=2),
    SamplingParams(temperature=0.9, top_p=0.9, seed=3),
    SamplingParams(temperature=0.8, repetition_penalty=1.4, seed=5),
]
"""Rows that a captured step samples, and such that it does not."""
PROMPTS = prompts(LENGTHS)
FIXTURE_PROMPTS = prompts([24, 17, 30], 1000)
LOGPROB_TOLERANCE = 1e-3


def ranks_of(folder: Path) -> tuple[int, ...]:
    """Four where shares cut groups in a way of their own: spread ones, and blocks of rows too."""
    return NUM_RANKS if folder.name.endswith(("-act", "-block")) else NUM_RANKS[:1]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Folder and transformers' model of each variant."""
    found = {}
    for variant, (name, overrides) in VARIANTS.items():
        folder = tmp_path_factory.mktemp("tiny") / variant
        found[variant] = folder, save_tiny(name, folder, **overrides)
    folder = tmp_path_factory.mktemp("tiny") / MXFP4
    found[MXFP4] = folder, save_mxfp4(folder)
    return found


@pytest.fixture(scope="module")
def outcomes(references: dict[str, tuple[Path, Any]]) -> dict[tuple[str, int], Outcome]:
    cases = {
        (variant, num_ranks): Case(
            folder=str(folder),
            num_ranks=num_ranks,
            prompts=PROMPTS,
            params=[GREEDY] * len(PROMPTS),
            num_new=NUM_NEW,
            chunk=CHUNK,
        )
        for variant, (folder, _) in references.items()
        for num_ranks in NUM_RANKS
    }
    for folder in FOLDERS:
        for num_ranks in (1, *ranks_of(folder)):
            cases[folder.name, num_ranks] = Case(
                folder=str(folder),
                num_ranks=num_ranks,
                prompts=FIXTURE_PROMPTS,
                params=[SamplingParams(temperature=0.0, logprobs=20)] * len(FIXTURE_PROMPTS),
                num_new=1,
            )
    for variant in GPU_RUNNER:
        for num_ranks in (1, 2):
            cases[f"{variant} as on a GPU", num_ranks] = Case(
                folder=str(references[variant][0]),
                num_ranks=num_ranks,
                prompts=PROMPTS * 2,
                params=MIXED_PARAMS,
                num_new=NUM_NEW,
                chunk=CHUNK,
                is_gpu_runner=num_ranks > 1,
            )
    # Ranks compare their largest logits; the last ids of the last rank are padding.
    cases["greedy as on a GPU", 4] = Case(
        folder=str(references["padded vocabulary"][0]),
        num_ranks=4,
        prompts=PROMPTS,
        params=[GREEDY] * len(PROMPTS),
        num_new=NUM_NEW,
        is_gpu_runner=True,
    )
    return dict(zip(cases, run_cases(list(cases.values())), strict=True))


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("variant", [*VARIANTS, MXFP4])
def test_greedy_tokens_are_those_of_transformers(
    variant: str,
    num_ranks: int,
    outcomes: dict[tuple[str, int], Outcome],
    references: dict[str, tuple[Path, Any]],
) -> None:
    outcome = outcomes[variant, num_ranks]
    assert outcome.error is None
    for prompt, tokens in zip(PROMPTS, outcome.tokens, strict=True):
        assert len(tokens) == NUM_NEW
        assert tokens == forced_tokens(references[variant][1], prompt, tokens)


@pytest.mark.parametrize("variant", GPU_RUNNER)
def test_runner_of_gpus_gives_the_tokens_of_one_rank_for_rows_of_all_kinds(
    variant: str, outcomes: dict[tuple[str, int], Outcome]
) -> None:
    one, two = (outcomes[f"{variant} as on a GPU", num_ranks] for num_ranks in (1, 2))
    assert two.error is None
    assert two.tokens == one.tokens


def test_ranks_of_gpus_choose_the_largest_logit_of_all(
    outcomes: dict[tuple[str, int], Outcome],
) -> None:
    assert outcomes["greedy as on a GPU", 4] == outcomes["padded vocabulary", 4]


@pytest.mark.parametrize(
    ("folder", "num_ranks"),
    [(folder, num_ranks) for folder in FOLDERS for num_ranks in ranks_of(folder)],
    ids=lambda value: value.name if isinstance(value, Path) else str(value),
)
def test_quantised_checkpoints_give_the_logprobs_of_one_rank(
    folder: Path, num_ranks: int, outcomes: dict[tuple[str, int], Outcome]
) -> None:
    one, several = outcomes[folder.name, 1], outcomes[folder.name, num_ranks]
    assert several.error is None
    errors = [
        largest_difference(expected[0], found[0])
        for expected, found in zip(one.logprobs, several.logprobs, strict=True)
    ]
    # Where inputs are rounded, a sum in another order can flip a rounding, but not in each prompt.
    assert min(errors) < LOGPROB_TOLERANCE
    assert max(errors) < (FLIPPED_TOLERANCE if folder in ROUNDED_INPUTS else LOGPROB_TOLERANCE)


def largest_difference(one: dict[int, float], other: dict[int, float]) -> float:
    """Between the logprobs of the likeliest tokens that both have."""
    common = one.keys() & other.keys()
    assert len(common) > len(one) // 2
    return max(abs(one[token_id] - other[token_id]) for token_id in common)

"""Models with scaled positions give the tokens of transformers beyond their original context."""

from pathlib import Path
from typing import Any

import pytest
from tests.engine.runner_driver import Job, run_jobs, tokens_of
from tests.engine.tiny_models import prompts, reference_tokens, save_tiny

from octavo_engine.batch import Runner
from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from octavo_engine.core.engine import EngineCore
from octavo_engine.messages import EngineRequest
from octavo_engine.runner.build import build_runner
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.scheduling.admission import DoorLimits
from octavo_engine.scheduling.prefix import root_digest

ORIGINAL_LEN = 64
NUM_NEW = 12
LONG = {"factor": 4.0, "original_max_position_embeddings": ORIGINAL_LEN}
SCALED: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("llama", {"factor": 4.0}),
    "dynamic": ("llama", {"factor": 4.0}),
    "llama3": ("llama", {**LONG, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    "yarn": ("llama", LONG),
    "longrope": (
        "phi3",
        {
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
            "long_factor": [2.0 + 0.5 * i for i in range(8)],
        },
    ),
}


def save_scaled(kind: str, folder: Path) -> Any:
    family, params = SCALED[kind]
    is_longrope = kind == "longrope"
    extra = {"original_max_position_embeddings": ORIGINAL_LEN} if is_longrope else {}
    return save_tiny(
        family,
        folder,
        max_position_embeddings=4 * ORIGINAL_LEN if is_longrope else ORIGINAL_LEN,
        rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **params},
        **extra,
    )


def build(folder: Path, swap_gib: float = 0.0) -> Runner:
    return build_runner(
        EngineConfig(
            model=ModelSettings(path=str(folder), device="cpu"),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02, swap_space_gib=swap_gib),
        )
    )


@pytest.mark.parametrize("kind", SCALED)
def test_tokens_beyond_the_original_context(kind: str, tmp_path: Path) -> None:
    save_scaled(kind, tmp_path)
    runner = build(tmp_path)
    assert runner.info.max_model_len == 4 * ORIGINAL_LEN
    jobs = [Job(prompt, NUM_NEW) for prompt in prompts([20, ORIGINAL_LEN + 1, 150])]
    together = tokens_of(run_jobs(runner, jobs))
    for job, tokens in zip(jobs, together, strict=True):
        # A fresh reference each: its dynamic rotation remembers the longest sequence it has seen.
        reference = save_scaled(kind, tmp_path / "again")
        assert tokens == reference_tokens(reference, job.token_ids, NUM_NEW)
    assert tokens_of(run_jobs(runner, jobs, chunk=7)) == together
    runner.close()


@pytest.mark.parametrize(
    ("kind", "swap_gib"), [*((kind, 0.0) for kind in SCALED), ("longrope", 0.02)]
)
def test_sequences_that_grow_past_the_original_context(
    kind: str, swap_gib: float, tmp_path: Path
) -> None:
    """longrope then turns to its long factors, for the tokens that are there already too."""
    save_scaled(kind, tmp_path)
    runner = build(tmp_path, swap_gib)
    lengths = [ORIGINAL_LEN - 9, ORIGINAL_LEN - 1, ORIGINAL_LEN, ORIGINAL_LEN + 1, 30]
    params = SamplingParams(temperature=0.0, max_tokens=40)
    wanted = prompts(lengths)
    core = EngineCore(runner, SchedulerSettings(max_num_seqs=8))
    expected = [
        # A fresh reference each: its dynamic rotation remembers the longest sequence it has seen.
        reference_tokens(save_scaled(kind, tmp_path / "again"), prompt, 40)
        for prompt in wanted
    ]
    for salt in ("cold", "warm", "warm"):  # the last finds the pages of the one before
        assert generate(core, wanted, params, salt) == expected
    assert (core._scheduler.state.counters.swapped_out > 0) == (swap_gib > 0)
    runner.close()


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_forks_of_a_prompt_within_the_original_context(kind: str, tmp_path: Path) -> None:
    save_scaled(kind, tmp_path)
    runner = build(tmp_path)
    core = EngineCore(runner, SchedulerSettings(max_num_seqs=2))
    (prompt,) = prompts([ORIGINAL_LEN - 3])
    params = SamplingParams(temperature=0.0, max_tokens=20, n=4)
    expected = reference_tokens(save_scaled(kind, tmp_path / "again"), prompt, 20)
    assert generate(core, [prompt], params, "forks") == [expected * 4]
    runner.close()


def generate(
    core: EngineCore, wanted: list[list[int]], params: SamplingParams, salt: str
) -> list[list[int]]:
    """The tokens of each prompt, of all its sequences one after the other."""
    for at, prompt in enumerate(wanted):
        core.submit(
            EngineRequest(
                request_id=str(at), prompt_token_ids=prompt, params=params, cache_salt=salt
            )
        )
    tokens: dict[tuple[str, int], list[int]] = {}
    while core.has_work:
        for delta in core.step():
            assert delta.error is None
            tokens.setdefault((delta.request_id, delta.index), []).extend(delta.token_ids)
    core.check_integrity()
    return [
        [token for index in range(params.n) for token in tokens[str(at), index]]
        for at in range(len(wanted))
    ]


@pytest.mark.parametrize(("kind", "expected"), [("yarn", None), ("dynamic", 64), ("longrope", 64)])
def test_the_runner_says_where_pages_begin_to_depend_on_the_prompts_length(
    kind: str, expected: int | None, tmp_path: Path
) -> None:
    save_scaled(kind, tmp_path)
    runner = build(tmp_path)
    assert runner.info.original_context_len == expected
    runner.close()


def test_scaled_prompts_share_pages_with_prompts_of_their_length_only() -> None:
    door = DoorLimits(vocab_size=128, max_model_len=256, original_context_len=64)
    roots = {n: root_digest(None, rotated_len=door.rotated_len(n)) for n in (10, 64, 65, 66)}
    assert roots[10] == roots[64] == root_digest(None)
    assert len({roots[64], roots[65], roots[66]}) == 3

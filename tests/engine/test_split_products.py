"""A product that leaves its result in parts for the norm behind it, forced where a GPU would choose
it: the reference's tokens, and only where nothing but that norm follows."""

from pathlib import Path

import pytest
from tests.engine.runner_driver import Job, run_jobs
from tests.engine.tiny_models import forced_tokens, prompts, save_tiny

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.runner.build import build_runner
from octavo_kernels import linear_ops

NUM_NEW = 8


@pytest.mark.parametrize(
    ("family", "splits"),
    [
        ("llama", True),
        ("phi3", True),
        ("mixtral", False),  # experts
        ("gemma2", False),  # a norm of its own follows
        ("granite", False),  # the result is scaled
        ("olmo2", False),
        ("llama-tied-bias", False),
    ],
)
def test_parts_change_no_token(
    family: str, splits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def always(num_tokens: int, num_rows: int, width: int, num_cores: int) -> bool:
        asked.append(num_tokens)
        return True

    monkeypatch.setattr(linear_ops, "pays_to_split", always)
    reference = save_tiny(family, tmp_path)
    runner = build_runner(
        EngineConfig(
            model=ModelSettings(path=str(tmp_path), device="cpu"),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.01),
        )
    )
    try:
        wanted = prompts([5, 33])
        outcomes = run_jobs(runner, [Job(prompt, NUM_NEW) for prompt in wanted])
    finally:
        runner.close()
    for prompt, outcome in zip(wanted, outcomes, strict=True):
        assert outcome.token_ids == forced_tokens(reference, prompt, outcome.token_ids)
    assert bool(asked) is splits

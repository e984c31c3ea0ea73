"""What a product leaves to the norm behind it, forced where a GPU would choose it: the reference's
tokens, and only where nothing but that norm follows."""

from pathlib import Path

import pytest
import torch
from tests.engine.runner_driver import Job, run_jobs
from tests.engine.tiny_models import forced_tokens, prompts, save_tiny

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.layers import linear
from octavo_engine.runner.build import build_runner
from octavo_kernels.linear_ops import ForNorm, PendingProduct, split_linear

NUM_NEW = 8


@pytest.mark.parametrize("leave", [split_linear, PendingProduct])
@pytest.mark.parametrize(
    ("family", "num_left"),
    [
        ("llama", 2),
        ("phi3", 2),
        ("mixtral", 1),  # experts: of the attention alone
        ("gemma2", 0),  # norms of their own follow
        ("granite", 0),  # the results are scaled
        ("olmo2", 0),
        ("llama-tied-bias", 0),
    ],
)
def test_what_is_left_to_a_norm_changes_no_token(
    family: str, num_left: int, leave: type[PendingProduct], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    left: set[int] = set()

    def always(x: torch.Tensor, weight: torch.Tensor) -> ForNorm:
        left.add(id(weight))
        return leave(x, weight)

    monkeypatch.setattr(linear, "linear_for_norm", always)
    reference = save_tiny(family, tmp_path)
    runner = build_runner(
        EngineConfig(
            model=ModelSettings(path=str(tmp_path), device="cpu"),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.01),
        )
    )
    try:
        wanted = prompts([5, 33])
        outcomes = run_jobs(runner, [Job(prompt, NUM_NEW) for prompt in wanted], chunk=17)
    finally:
        runner.close()
    for prompt, outcome in zip(wanted, outcomes, strict=True):
        assert outcome.token_ids == forced_tokens(reference, prompt, outcome.token_ids)
    assert len(left) == num_left * reference.config.num_hidden_layers

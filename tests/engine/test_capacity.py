"""How long one sequence may get in the pages there are: the same for scheduler, runners and fit."""

from typing import Any

import pytest
import torch
from tests.engine.fake_runner import FakeRunner

from octavo_engine.batch import KVGroup
from octavo_engine.config import EngineConfig, ModelSettings, SchedulerSettings
from octavo_engine.core.engine import EngineCore
from octavo_engine.errors import ConfigError
from octavo_engine.fit import FitQuestion, plan_fit
from octavo_engine.loading.config_file import parse_config
from octavo_engine.models.families import build_model_config
from octavo_engine.runner.sizing import Sizes, choose_sizes
from octavo_engine.scheduling.capacity import blocks_alone, capacity_tokens

FULL, WINDOW = None, 100
BLOCK_BYTES = 1000


@pytest.mark.parametrize(
    ("windows", "num_tokens", "num_blocks"),
    [
        ([FULL], 0, 0),
        ([FULL], 16, 1),
        ([FULL], 17, 2),
        ([FULL, FULL], 17, 4),
        # A window of 100 tokens lies in 8 pages of 16 at most, wherever it begins.
        ([WINDOW], 16, 1),
        ([WINDOW], 10_000, 8),
        ([FULL, WINDOW, WINDOW], 10_000, 625 + 2 * 8),
    ],
)
def test_pages_of_one_sequence(windows: list[int | None], num_tokens: int, num_blocks: int) -> None:
    assert blocks_alone(windows, 16, num_tokens) == num_blocks


@pytest.mark.parametrize("windows", [[FULL], [WINDOW], [FULL, WINDOW, WINDOW]])
@pytest.mark.parametrize("num_blocks", [0, 1, 7, 30, 1000])
def test_the_longest_sequence_fits_and_one_token_more_does_not(
    windows: list[int | None], num_blocks: int
) -> None:
    limit = 5000
    longest = capacity_tokens(windows, 16, num_blocks, limit)
    assert blocks_alone(windows, 16, longest) <= num_blocks
    assert longest == limit or blocks_alone(windows, 16, longest + 1) > num_blocks


def sizes(device: str, num_blocks: int, **model: Any) -> Sizes:
    return choose_sizes(
        EngineConfig(model=ModelSettings(path="m", **model)),
        model_context_len=131_072,
        block_bytes=BLOCK_BYTES,
        groups=(KVGroup((0, 1), FULL), KVGroup((2, 3), 1024), KVGroup((4,), 1024)),
        pages_bytes=num_blocks * BLOCK_BYTES,
        device=torch.device(device),
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_layers_with_a_window_do_not_shorten_the_context(device: str) -> None:
    """2,048 pages of 64 tokens for all of it, 17 for each window and the null block are enough."""
    assert sizes(device, 2048 + 2 * 17 + 1).max_model_len == 131_072
    assert sizes(device, 2048 + 2 * 17).max_model_len == 131_072 - 64
    with pytest.raises(ConfigError, match="131072 is more than the 131008 tokens that the pages"):
        sizes(device, 2048 + 2 * 17, max_model_len=131_072)


def test_pages_for_no_sequence_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hold 3 blocks of .* too few for one sequence"):
        sizes("cpu", 3)


def test_the_scheduler_holds_what_the_runner_was_sized_for() -> None:
    groups = (KVGroup((0,), FULL), KVGroup((1,), WINDOW))
    runner = FakeRunner(num_blocks=40, kv_groups=groups, max_model_len=100_000)
    windows = [group.window for group in groups]
    held = capacity_tokens(windows, runner.info.block_size, 39, 100_000)
    assert EngineCore(runner, SchedulerSettings()).info.max_model_len == held < 100_000


def test_fit_counts_windows_as_the_scheduler_does() -> None:
    raw = {
        "model_type": "gemma3_text",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "vocab_size": 1000,
        "sliding_window": 1024,
        "max_position_embeddings": 131_072,
    }
    told = plan_fit(
        build_model_config(parse_config(raw, "test")),
        FitQuestion(gpu_bytes=9 * 2**30, max_num_seqs=8, max_step_tokens=512),
    )
    # One group of full attention, five with a window: a context takes a sixth of what all would.
    assert told.num_kv_tokens < 131_072 == told.max_model_len

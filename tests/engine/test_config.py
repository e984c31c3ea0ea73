"""Settings out of their range are refused with their name and value, whoever makes them."""

from typing import Any

import pytest
from tests.engine.test_cli_config import Command

from octavo_engine.cli.options import engine_config
from octavo_engine.config import CacheSettings, EngineConfig, SchedulerSettings
from octavo_engine.errors import ConfigError

NAN, INF = float("nan"), float("inf")
WRONG = [
    ("max_model_len", 0, "must be 1 or more, got 0"),
    ("max_model_len", -5, "must be 1 or more, got -5"),
    ("block_size", 48, "must be a power of two from 16 to 1024, got 48"),
    ("gpu_memory_utilization", 92.0, "must be above 0 and at most 1, got 92.0"),
    ("gpu_memory_utilization", 0.0, "must be above 0 and at most 1, got 0.0"),
    ("gpu_memory_utilization", NAN, "must be above 0 and at most 1, got nan"),
    ("cpu_kv_cache_gib", 0.0, "must be above 0 and finite, got 0.0"),
    ("cpu_kv_cache_gib", INF, "must be above 0 and finite, got inf"),
    ("swap_space_gib", -1.0, "must be 0 or more and finite, got -1.0"),
    ("swap_space_gib", NAN, "must be 0 or more and finite, got nan"),
    ("max_num_seqs", 0, "must be 1 or more, got 0"),
    ("max_num_batched_tokens", 0, "must be 1 or more, got 0"),
    ("max_queued_requests", 0, "must be 1 or more, got 0"),
    ("max_queued_tokens", 0, "must be 1 or more, got 0"),
    ("target_itl_ms", 0.0, "must be above 0 and finite, got 0.0"),
    ("target_itl_ms", INF, "must be above 0 and finite, got inf"),
    ("target_itl_ms", NAN, "must be above 0 and finite, got nan"),
    ("priority_ageing_s", 0.0, "must be above 0 and finite, got 0.0"),
    ("rank_timeout_s", INF, "must be above 0 and finite, got inf"),
]


@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_a_setting_out_of_its_range_is_refused(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} {words}$"):
        engine_config("m", {name: value})


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--gpu-memory-utilization", "92", "gpu_memory_utilization must be above 0 and at most 1"),
        ("--swap-space-gib", "-1", "swap_space_gib must be 0 or more"),
        ("--block-size", "48", "block_size must be a power of two"),
    ],
)
def test_the_command_line_says_so_as_of_any_option(option: str, value: str, words: str) -> None:
    command = Command()
    complaint = command.run("m", option, value)
    assert command.config is None
    assert words in complaint
    assert "Traceback" not in complaint


def test_ends_of_the_ranges_are_in_them() -> None:
    cache = CacheSettings(block_size=1024, gpu_memory_utilization=1.0, swap_space_gib=0.0)
    assert cache.gpu_memory_utilization == 1.0
    assert SchedulerSettings(max_num_seqs=1, max_num_batched_tokens=1).max_num_seqs == 1
    assert isinstance(engine_config("m", {"max_model_len": 1}), EngineConfig)

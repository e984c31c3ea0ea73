"""Which part of a model each rank keeps, and which sizes are refused with the numbers."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.tiny_models import save_tiny

from octavo_engine.config import EngineConfig, ModelSettings, ParallelSettings
from octavo_engine.errors import ConfigError
from octavo_engine.loading.model_files import open_model
from octavo_engine.model_config import ModelConfig
from octavo_engine.parallel.driver import build_parallel_runner
from octavo_engine.parallel.setup import RankSetup
from octavo_engine.parallel.shares import (
    Share,
    even_share,
    head_shares,
    stacked,
    vocabulary_share,
)
from octavo_engine.progress import silent
from octavo_engine.quantization.matrix import QuantizedMatrix


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    """4 heads of 16, 2 KV heads."""
    folder = tmp_path_factory.mktemp("llama")
    save_tiny("llama", folder)
    return open_model(str(folder)).model_config()


def test_heads_follow_their_kv_head_where_there_are_fewer_than_ranks(config: ModelConfig) -> None:
    shares = [head_shares(config, rank, 4) for rank in range(4)]
    assert [share.q.runs for share in shares] == [((rank * 16, 16),) for rank in range(4)]
    assert [share.kv.runs for share in shares] == [((0, 16),), ((0, 16),), ((16, 16),), ((16, 16),)]


@given(st.integers(1, 300), st.integers(1, 8))
def test_shares_of_a_vocabulary_are_equal_and_together_the_whole(size: int, num_ranks: int) -> None:
    whole = torch.arange(size)
    parts = [vocabulary_share(size, rank, num_ranks).take(whole, 0) for rank in range(num_ranks)]
    assert len({len(part) for part in parts}) == 1
    assert torch.equal(torch.cat(parts)[:size], whole)


def test_share_of_stacked_matrices_takes_of_each() -> None:
    share = even_share(4, 1, 2)
    rows = stacked([(share, 4), (Share(((1, 1),)), 2), (share, 4)])
    assert rows.take(torch.arange(10), 0).tolist() == [2, 3, 5, 8, 9]


def never(setup: RankSetup) -> None:
    raise AssertionError("the ranks' store was opened")


def matrix(scale_rows: int, group_size: int | None, *, spread: bool = False) -> QuantizedMatrix:
    generator = torch.Generator().manual_seed(0)
    num_rows, width = 24, 32
    size = group_size or width
    shape = (-(-num_rows // scale_rows), -(-width // size))
    groups = torch.randperm(width, generator=generator) // size if spread else None
    return QuantizedMatrix(
        bits=4,
        values=torch.randint(0, 16, (num_rows, width), generator=generator, dtype=torch.uint8),
        scales=torch.rand(shape, generator=generator),
        zeros=torch.randint(0, 16, shape, generator=generator).float(),
        scale_rows=scale_rows,
        group_size=group_size,
        groups=groups,
    )


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize(
    "whole",
    [
        matrix(1, None),
        matrix(1, 16),
        matrix(1, 32),
        matrix(8, 16),
        matrix(24, 16),
        matrix(16, 8, spread=True),
    ],
)
def test_share_of_a_quantised_matrix_is_that_of_its_dequantised(
    whole: QuantizedMatrix, num_ranks: int
) -> None:
    for rank in range(num_ranks):
        rows, inputs = vocabulary_share(24, rank, num_ranks), even_share(32, rank, num_ranks)
        expected = inputs.take(rows.take(whole.dequantize(), 0), 1)
        assert torch.equal(whole.share(rows, inputs).dequantize(), expected)


def test_rows_of_quantised_matrix_may_be_padded() -> None:
    rows = vocabulary_share(24, 4, 5)
    assert rows.num_padding == 1
    assert whole_rows(rows).tolist() == [20, 21, 22, 23, 23]
    found = matrix(8, 16).share(rows, None).dequantize()
    assert torch.equal(found, matrix(8, 16).dequantize()[[20, 21, 22, 23, 23]])


def whole_rows(share: Share) -> torch.Tensor:
    return share.take(torch.arange(24), 0)


@pytest.mark.parametrize(
    ("overrides", "num_ranks", "sentence"),
    [
        ({}, 3, "tensor_parallel_size 3 cannot share the model's 4 attention heads"),
        ({"intermediate_size": 98}, 4, "98 inner features of its feed-forward networks"),
        (
            {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3},
            2,
            "3 key-value heads: neither of 3 and 2 is a multiple of the other",
        ),
        ({}, 16, "tensor_parallel_size 16 is not between 1 and 8"),
    ],
)
def test_impossible_size_is_refused_with_the_numbers_before_anything_is_started(
    overrides: dict[str, int],
    num_ranks: int,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_tiny("llama", tmp_path, **overrides)
    monkeypatch.setattr("octavo_engine.parallel.driver.open_store", never)
    config = EngineConfig(
        model=ModelSettings(path=str(tmp_path), device="cpu"),
        parallel=ParallelSettings(tensor_parallel_size=num_ranks),
    )
    with pytest.raises(ConfigError, match=sentence):
        build_parallel_runner(config, None, silent, "console")


def test_experts_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    save_tiny("qwen3_moe", tmp_path, moe_intermediate_size=30)
    config = EngineConfig(
        model=ModelSettings(path=str(tmp_path), device="cpu"),
        parallel=ParallelSettings(tensor_parallel_size=4),
    )
    with pytest.raises(ConfigError, match="30 inner features of its experts"):
        build_parallel_runner(config, None, silent, "console")

"""Products of pairs, which CPU attention is made of, with the CPU's instruction and without it."""

import pytest
import torch

pytest.importorskip("numba")  # an engine without it runs the references

from numba import njit

from octavo_kernels.cpu import pair_dots

NUM_KEYS = pair_dots.KEYS_AT_ONCE
NUM_QUERIES = 3
STRIDE = 16
"""Numbers from one query's scores, or weights, to the next one's."""


@pytest.fixture(params=[True, False])
def on_any_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(pair_dots, "has_bfloat16", lambda: False)


@pytest.mark.usefixtures("on_any_cpu")
@pytest.mark.parametrize("head_dim", [64, 42])
def test_scores_and_weighted_sums(head_dim: int) -> None:
    @njit
    def run(q, keys, scores, values, weights, sums):
        pair_dots.add_scores(NUM_QUERIES, head_dim, q, keys, scores, 4 * STRIDE)
        pair_dots.add_weighted(NUM_QUERIES, head_dim, sums, values, weights, 2 * STRIDE)

    cpu = torch.Generator().manual_seed(20261130)
    q = torch.randn(NUM_QUERIES, head_dim, generator=cpu).bfloat16()
    keys, values = torch.randn(2, NUM_KEYS, head_dim, generator=cpu).bfloat16()
    weights = torch.rand(NUM_QUERIES, STRIDE, generator=cpu).bfloat16()
    scores = torch.full((NUM_QUERIES, STRIDE), torch.nan)
    before = torch.randn(NUM_QUERIES, 2, head_dim // 2, generator=cpu)
    sums = before.clone()
    run(*(tensor.data_ptr() for tensor in (q, keys, scores, values, weights, sums)))
    torch.testing.assert_close(scores[:, :NUM_KEYS], q.float() @ keys.float().T)
    assert scores[:, NUM_KEYS:].isnan().all()
    added = weights[:, :NUM_KEYS].float() @ values.float()
    torch.testing.assert_close(sums, before + added.unflatten(1, (-1, 2)).transpose(1, 2))

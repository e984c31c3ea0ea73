"""Routing, its plan and the grouped products of experts against plain PyTorch."""

from dataclasses import dataclass, replace

import pytest
import torch

from octavo_kernels.expert_ops import Activation, ExpertWeights, route
from octavo_kernels.gpu.expert_plan import NO_EXPERT, max_tiles, plan_experts
from octavo_kernels.gpu.expert_route import route as route_kernel
from octavo_kernels.gpu.experts import choose_block_m, grouped_experts
from octavo_kernels.reference.experts import grouped_experts as reference
from octavo_kernels.reference.experts import route as route_reference

SILU = Activation("silu")
CLAMPED = Activation("clamped_swiglu", alpha=1.702, limit=1.5)
EXPERTS_ERROR = 3
"""Times the error of one rounding: inner features and each expert's result are rounded too."""


@dataclass(frozen=True)
class Case:
    num_tokens: int
    num_experts: int
    top_k: int
    hidden: int = 64
    inner: int = 32
    activation: Activation = SILU
    is_interleaved: bool = False
    has_bias: bool = False
    block_m: int | None = None
    use_tma: bool = False
    num_popular: int | None = None
    """Experts that are chosen at all."""


CASES = {
    "one token, one expert": Case(1, 1, 1),
    "one token, all experts": Case(1, 8, 8),
    "one token of many experts": Case(1, 64, 8),
    "tile and one more": Case(17, 2, 1, block_m=16),
    "experts without tokens": Case(40, 16, 2, num_popular=3),
    "one expert has all": Case(70, 64, 1, num_popular=1),
    "odd widths": Case(9, 5, 3, hidden=72, inner=40),
    "widths of no 16 bytes": Case(9, 5, 3, hidden=50, inner=37, use_tma=True),
    "gpt-oss": Case(33, 4, 4, 96, 48, CLAMPED, is_interleaved=True, has_bias=True),
    "gpt-oss by the copy engine": Case(
        33, 4, 4, 72, 48, CLAMPED, is_interleaved=True, has_bias=True, use_tma=True
    ),
    "mixtral by the copy engine": Case(6, 8, 2, hidden=160, inner=72, use_tma=True),
    "gelu with biases": Case(12, 4, 2, activation=Activation("gelu_tanh"), has_bias=True),
    "large tiles": Case(150, 2, 2, block_m=128),
    "many tokens": Case(512, 6, 1, hidden=32, inner=16),
    # What follows takes the interpreter too long.
    "many of many": Case(512, 64, 8, hidden=512, inner=192),
    "a prefill of mixtral's": Case(3000, 8, 2, hidden=512, inner=448),
    "a prefill of gpt-oss's": Case(
        3000, 32, 4, 1440, 360, CLAMPED, is_interleaved=True, has_bias=True
    ),
}
GPU_CASES = ("many of many", "a prefill of mixtral's", "a prefill of gpt-oss's")


@pytest.fixture(
    params=[
        pytest.param(case, id=name, marks=[pytest.mark.gpu] if name in GPU_CASES else [])
        for name, case in CASES.items()
    ]
)
def case(request, device) -> Case:
    if device.type == "cpu" and request.param in [CASES[name] for name in GPU_CASES]:
        pytest.skip("needs a GPU: takes minutes under the interpreter")
    return request.param


@pytest.fixture
def narrow(device) -> torch.dtype:
    return torch.float16 if device.type == "cpu" else torch.bfloat16


@pytest.fixture
def experts_of(device, generator):
    def make(case: Case, dtype: torch.dtype) -> ExpertWeights:
        def draw(*shape: int, scale: float) -> torch.Tensor:
            drawn = torch.randn(shape, generator=generator, device=device) * scale
            return drawn.to(dtype)

        num, hidden, inner = case.num_experts, case.hidden, case.inner
        return ExpertWeights(
            gate_up=draw(num, 2 * inner, hidden, scale=hidden**-0.5),
            down=draw(num, hidden, inner, scale=inner**-0.5),
            gate_up_bias=draw(num, 2 * inner, scale=0.5) if case.has_bias else None,
            down_bias=draw(num, hidden, scale=0.5) if case.has_bias else None,
            is_interleaved=case.is_interleaved,
            activation=case.activation,
        )

    return make


@pytest.fixture
def choose(device, generator):
    def make(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.randn(case.num_tokens, case.num_experts, generator=generator, device=device)
        if case.num_popular is not None:
            logits[:, : case.num_popular] += 100
        return route_reference(logits, case.top_k, normalizes=True, dtype=torch.float32)

    return make


def _widened(experts: ExpertWeights) -> ExpertWeights:
    names = ("gate_up", "down", "gate_up_bias", "down_bias")
    tensors = {name: getattr(experts, name) for name in names}
    return replace(
        experts, **{name: None if one is None else one.float() for name, one in tensors.items()}
    )


def test_the_sum_over_experts(case, choose, experts_of, narrow, device, generator, assert_close):
    x = torch.randn(case.num_tokens, case.hidden, generator=generator, device=device).to(narrow)
    weights, chosen = choose(case)
    experts = experts_of(case, narrow)
    found = grouped_experts(x, weights, chosen, experts, block_m=case.block_m, use_tma=case.use_tma)
    exact = reference(x.float(), weights, chosen, _widened(experts))
    assert_close(found, exact, narrow, factor=EXPERTS_ERROR)


def test_float32_stays_float32(choose, experts_of, device, generator, assert_close):
    case = CASES["odd widths"]
    x = torch.randn(case.num_tokens, case.hidden, generator=generator, device=device)
    weights, chosen = choose(case)
    experts = experts_of(case, torch.float32)
    found = grouped_experts(x, weights, chosen, experts)
    exact = reference(x, weights, chosen, experts)
    assert_close(found, exact, torch.float32, factor=EXPERTS_ERROR)


def test_no_tokens_give_none(experts_of, device):
    case = Case(0, 4, 2)
    weights, x = torch.ones(0, 2, device=device), torch.ones(0, case.hidden, device=device)
    found = grouped_experts(x, weights, weights.int(), experts_of(case, torch.float32))
    assert found.shape == (0, case.hidden)


@pytest.mark.parametrize(
    ("num_tokens", "top_k", "num_popular", "block_m"),
    [
        (1, 1, 1, 16),
        (3, 5, 12, 16),
        (16, 1, 1, 16),
        (130, 4, 12, 16),
        (130, 4, 3, 64),
        # Tiles and pairs beyond a chunk.
        (1030, 4, 5, 16),
    ],
)
def test_a_plan_has_each_pair_once_in_a_tile_of_its_expert(
    num_tokens, top_k, num_popular, block_m, device, generator
):
    shape = (num_tokens, top_k)
    chosen = torch.randint(num_popular, shape, generator=generator, device=device).int()
    plan = plan_experts(chosen, 12, block_m)
    seen: list[int] = []
    flat = chosen.flatten().tolist()
    order = plan.order.tolist()
    for expert, first, end in plan.tiles.tolist():
        if expert == NO_EXPERT:
            continue
        assert 0 < end - first <= block_m
        assert {flat[pair] for pair in order[first:end]} == {expert}
        seen += order[first:end]
    assert seen == sorted(range(len(flat)), key=lambda pair: flat[pair])


def test_a_plan_is_large_enough_for_the_most_tiles_and_no_larger():
    assert max_tiles(num_pairs=8, num_experts=64, block_m=16) == 8
    # 3 experts of 17 pairs each need 2 tiles each.
    assert max_tiles(num_pairs=51, num_experts=3, block_m=16) == 6
    assert max_tiles(num_pairs=4096, num_experts=64, block_m=64) == 127


@pytest.mark.parametrize(
    ("pairs", "experts", "block_m"),
    [(8, 128, 16), (2048, 128, 32), (65536, 128, 128), (512, 8, 64), (1024, 8, 128)],
)
def test_a_tile_holds_twice_the_average_up_to_what_fills_it(pairs, experts, block_m):
    assert choose_block_m(pairs, experts) == block_m


@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (4, 4), (6, 2), (60, 8), (128, 8)])
def test_routing(num_experts, top_k, normalizes, dtype, device, generator, assert_close):
    logits = 3 * torch.randn(9, num_experts, generator=generator, device=device)
    # Distinct in every dtype, so that there is one answer.
    logits = (logits.argsort(dim=-1).argsort(dim=-1) * 0.25).to(dtype)
    weights, chosen = route_kernel(logits, top_k, normalizes=normalizes, dtype=dtype)
    exact, expected = route(logits.cpu(), top_k, normalizes=normalizes, dtype=torch.float32)
    assert chosen.tolist() == expected.tolist()
    assert_close(weights.cpu(), exact, dtype)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_what_is_no_number_still_goes_to_an_expert(device):
    logits = torch.full((2, 5), float("nan"), device=device)
    _, chosen = route_kernel(logits, 3, normalizes=True, dtype=torch.float32)
    assert chosen.min() >= 0
    assert chosen.max() < 5


def test_more_experts_a_token_than_there_are_is_refused(device):
    with pytest.raises(ValueError, match=r"top_k 5 .* 1 to 4"):
        route(torch.ones(1, 4, device=device), 5, normalizes=True, dtype=torch.float32)

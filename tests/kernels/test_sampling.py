"""Sampling without a sort picks the very token that the sorting reference picks."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from octavo_kernels.gpu.sampling import PART_LEN, sample
from octavo_kernels.metadata import SamplingTensors
from octavo_kernels.reference.sampling import mask_filtered
from octavo_kernels.reference.sampling import sample as reference


def make_params(
    rows: int, device: torch.device, *, temperature: Sequence[float] = (1.0,),
    top_k: Sequence[int] = (0,), top_p: Sequence[float] = (1.0,), min_p: Sequence[float] = (0.0,),
    first_seed: int = 0,
) -> SamplingTensors:  # fmt: skip
    """Each list is repeated to the number of rows; every row has its own seed."""

    def fill(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        repeated = [values[i % len(values)] for i in range(rows)]
        return torch.tensor(repeated, dtype=dtype, device=device)

    return SamplingTensors(
        temperature=fill(temperature, torch.float32),
        top_k=fill(top_k, torch.int32),
        top_p=fill(top_p, torch.float32),
        min_p=fill(min_p, torch.float32),
        seeds=torch.arange(first_seed, first_seed + rows, device=device),
        positions=torch.arange(rows, device=device) * 3,
        all_greedy=all(t <= 0 for t in temperature),
        any_filter=max(top_k) > 0 or min(top_p) < 1 or max(min_p) > 0,
    )


@pytest.mark.parametrize("num_tokens", [7, 1000, 5003])
def test_greedy_takes_the_lowest_id_on_ties(
    num_tokens: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> None:
    logits = torch.randint(-9, 9, (4, num_tokens), generator=generator, device=device).to(dtype)
    ids = sample(logits, make_params(4, device, temperature=[0.0]))
    expected = [(row == row.max()).nonzero()[0].item() for row in logits]
    assert ids.tolist() == expected


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": [0.0, 0.5, 2.0]},
        {"top_k": [0, 1, 2, 50, 5000, 9999]},
        {"top_p": [1.0, 0.9, 0.1, 1e-6]},
        {"min_p": [0.0, 0.5, 0.01]},
        {
            "top_k": [40, 3],
            "top_p": [0.7, 0.95, 0.3],
            "min_p": [0.0, 0.02],
            "temperature": [0.8, 3.0],
        },
    ],
    ids=["none", "temperature", "top_k", "top_p", "min_p", "all"],
)
def test_draws_what_the_reference_draws(
    filters: dict[str, list[float]], device: torch.device, generator: torch.Generator
) -> None:
    logits = 2 * torch.randn(6, 5003, generator=generator, device=device)
    params = make_params(6, device, **filters)  # type: ignore[arg-type]  # filters of several types
    assert sample(logits, params).tolist() == reference(logits, params).tolist()


@pytest.mark.parametrize("top_k", [1, 3, 10])
def test_a_flat_distribution_with_ties_stays_among_the_kept(
    top_k: int, device: torch.device, generator: torch.Generator
) -> None:
    logits = torch.randint(0, 3, (4, 300), generator=generator, device=device).float() * 0.01
    params = make_params(4, device, top_k=[top_k], top_p=[0.5, 1.0])
    assert sample(logits, params).tolist() == reference(logits, params).tolist()


@pytest.mark.parametrize("filters", [{"top_k": [300]}, {"top_p": [0.9]}, {"min_p": [0.1]}])
def test_candidates_come_from_all_parts_of_a_row(
    filters: dict[str, list[float]], device: torch.device, generator: torch.Generator
) -> None:
    logits = 3 * torch.randn(3, 3 * PART_LEN - 5, generator=generator, device=device)
    params = make_params(3, device, **filters)  # type: ignore[arg-type]  # filters of several types
    assert sample(logits, params).tolist() == reference(logits, params).tolist()


@pytest.mark.parametrize(
    "filters",
    [{"top_k": [2]}, {"top_k": [3], "top_p": [0.6]}, {"top_p": [0.04]}],
    ids=["top_k", "top_k and top_p", "top_p"],
)
@pytest.mark.parametrize(("rows", "num_tokens"), [(32, 40), (6, 2100)])
def test_the_border_of_the_kept_set_is_exact(
    filters: dict[str, list[float]], rows: int, num_tokens: int,
    device: torch.device, generator: torch.Generator,
) -> None:  # fmt: skip
    """Nearly equal logits: one token too many or too few would soon be seen. 2,100 candidates are
    too many to gather."""
    logits = 1e-3 * torch.randn(rows, num_tokens, generator=generator, device=device)
    params = make_params(rows, device, **filters)  # type: ignore[arg-type]  # filters of several types
    assert sample(logits, params).tolist() == reference(logits, params).tolist()


def test_more_tokens_kept_than_are_gathered(
    device: torch.device, generator: torch.Generator
) -> None:
    logits = 0.1 * torch.randn(2, 9001, generator=generator, device=device)
    params = make_params(2, device, top_p=[0.9, 1.0], min_p=[0.0, 0.5])
    assert sample(logits, params).tolist() == reference(logits, params).tolist()


@pytest.mark.parametrize("temperature", [1e-3, 5e-6, 1e-6, 1e-7])
@pytest.mark.parametrize("filters", [{"top_k": [40]}, {"top_p": [0.9]}, {"min_p": [0.05]}])
def test_logits_millions_apart_are_drawn_from_this_step_alone(
    filters: dict[str, list[float]], temperature: float, device: torch.device,
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Candidates of a step before, still in the scratch memory, may be larger than this step's."""
    logits = 4 * torch.randn(3, 5003, generator=generator, device=device)
    params = make_params(3, device, temperature=[temperature], **filters)  # type: ignore[arg-type]  # filters of several types
    expected = reference(logits, params).tolist()
    empty = torch.empty

    def stale(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = empty(*args, **kwargs)
        return made.fill_(1e30 if made.is_floating_point() else 123_456_789)

    monkeypatch.setattr(torch, "empty", stale)
    assert sample(logits, params).tolist() == expected


def test_tokens_at_minus_infinity_are_never_drawn(device: torch.device) -> None:
    logits = torch.full((8, 400), float("-inf"), device=device)
    logits[:, 399] = -50.0
    logits[:, 17] = -50.0
    params = make_params(8, device, top_p=[1.0, 0.9], top_k=[0, 0, 5])
    assert set(sample(logits, params).tolist()) <= {17, 399}


def test_a_row_without_any_number_gives_an_id_of_the_vocabulary(device: torch.device) -> None:
    logits = torch.full((2, 50), float("-inf"), device=device)
    logits[1] = float("nan")
    for temperature in (0.0, 1.0):
        ids = sample(logits, make_params(2, device, temperature=[temperature]))
        assert ((ids >= 0) & (ids < 50)).all()


def test_frequencies_are_the_probabilities(device: torch.device) -> None:
    """Of the reference, whose draws the kernel's equal."""
    rows = 20_000
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -5.0], device=device).expand(rows, 5)
    ids = reference(logits, make_params(rows, device, top_k=[4]))
    expected = logits[0, :4].softmax(0) * rows
    seen = torch.bincount(ids, minlength=5)
    assert seen[4] == 0
    chi_square = ((seen[:4] - expected) ** 2 / expected).sum().item()
    assert chi_square < 16.3  # three degrees of freedom: one in a thousand


def test_the_draw_depends_on_seed_and_position_alone(
    device: torch.device, generator: torch.Generator
) -> None:
    logits = torch.randn(1, 500, generator=generator, device=device).expand(5, 500).contiguous()
    alone = make_params(1, device, first_seed=3)
    together = make_params(5, device)
    together.positions.fill_(0)
    assert sample(logits, together)[3] == sample(logits[:1], alone)[0]


def test_the_reference_keeps_what_the_filters_say(device: torch.device) -> None:
    probabilities = torch.tensor([[0.4, 0.3, 0.1, 0.1, 0.06, 0.04]], device=device)

    def kept(**filters: list[float]) -> list[int]:
        params = make_params(1, device, **filters)  # type: ignore[arg-type]  # filters of several types
        masked = mask_filtered(probabilities.log(), params)
        return torch.isfinite(masked[0]).nonzero().flatten().tolist()

    assert kept(top_k=[2]) == [0, 1]
    assert kept(top_k=[3]) == [0, 1, 2, 3]  # tied with the third
    assert kept(top_p=[0.69]) == [0, 1]
    assert kept(top_p=[0.71]) == [0, 1, 2, 3]
    assert kept(top_k=[2], top_p=[0.5]) == [0]  # 0.4 of 0.7 is more than a half
    assert kept(min_p=[0.2]) == [0, 1, 2, 3]
    assert kept(top_p=[1e-9]) == [0]


def test_logits_with_gaps_are_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="last stride 1"):
        sample(torch.zeros(4, 2, device=device).t(), make_params(2, device))

"""Runs the real kernels: compiled where there is a GPU, else under Triton's interpreter on the CPU.

The interpreter must be chosen before triton is imported, so this file decides when it is loaded.
bfloat16 is proven on a GPU alone: the interpreter computes its dot products wrongly.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable

import pytest
import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise pytest.UsageError(
            "triton was imported before tests/kernels chose its interpreter; "
            "set TRITON_INTERPRET=1 for the whole run"
        )
    os.environ["TRITON_INTERPRET"] = "1"


def quicken_interpreter() -> None:
    """At each call of a function within a kernel the interpreter looks through the whole of
    triton.language for what it has to replace, which takes longer than most functions. Which names
    those are never changes."""
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    @functools.cache
    def names_of(namespace: object) -> list[str]:
        return [name for name, member in inspect.getmembers(namespace) if is_builtin(member)]

    def patch_builtin(namespace: object, *rest: object) -> None:
        for name in names_of(namespace):
            member = getattr(namespace, name)
            if is_builtin(member):  # not replaced yet
                interpreter._patch_attr(namespace, name, member, *rest)

    interpreter._patch_builtin = patch_builtin


if not ON_GPU:
    quicken_interpreter()

DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if ON_GPU else [])

# Relative RMS error of one rounding, 1.66e-3 in bfloat16, and a different order of sums.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2.5e-4, torch.bfloat16: 2e-3}


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen


@pytest.fixture(
    params=[
        pytest.param(torch.float16, id="float16"),
        pytest.param(torch.bfloat16, id="bfloat16", marks=pytest.mark.gpu),
    ]
)
def dtype_of_16_bits(request: pytest.FixtureRequest, device: torch.device) -> torch.dtype:
    """For kernels that take no others."""
    if request.param == torch.bfloat16 and device.type == "cpu":
        pytest.skip("the interpreter computes bfloat16 products wrongly")  # in bfloat16 a GPU test
    chosen: torch.dtype = request.param
    return chosen


@pytest.fixture
def draw(
    dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Callable[..., torch.Tensor]:
    """Random numbers: draw(*shape, scale=1.0)."""

    def make(*shape: int, scale: float = 1.0) -> torch.Tensor:
        drawn = torch.randn(shape, generator=generator, device=device) * scale
        return drawn.to(dtype)

    return make


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if ON_GPU else "cpu")


@pytest.fixture
def generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(20261130)


@pytest.fixture(autouse=True)
def nan_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs start as NaN: an element that a kernel forgets to write cannot pass."""
    empty, empty_like = torch.empty, torch.empty_like

    def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def make_poisoned(*args: object, **kwargs: object) -> torch.Tensor:
            made = make(*args, **kwargs)
            if made.is_floating_point():
                return made.fill_(float("nan"))
            return made.fill_(-(2**30) if made.dtype.itemsize > 2 else torch.iinfo(made.dtype).min)

        return make_poisoned

    monkeypatch.setattr(torch, "empty", poisoned(empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(empty_like))


@pytest.fixture
def assert_close() -> Callable[..., None]:
    def check(
        actual: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype, factor: float = 1.0
    ) -> None:
        """`exact` is the float32 (or wider) result before rounding to `dtype`; factor: for more
        roundings than that one."""
        assert actual.shape == exact.shape
        assert actual.dtype == dtype
        assert torch.isfinite(actual).all()
        exact = exact.double()
        error = ((actual.double() - exact).norm() / exact.norm()).item()
        # Few numbers may be unlucky in their roundings.
        limit = TOLERANCE[dtype] * factor * (1 + 2 * exact.numel() ** -0.5)
        assert error < limit, f"relative RMS error {error:.2e}, allowed {limit:.2e}"

    return check

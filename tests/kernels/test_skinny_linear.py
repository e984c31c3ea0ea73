"""The product of few tokens against its float32 reference: alone, gated, between two norms."""

import pytest
import torch

from octavo_kernels.gpu import single_row
from octavo_kernels.gpu.embed import embed_rows as embed_kernel
from octavo_kernels.gpu.rms_norm import rms_norm as norm_kernel
from octavo_kernels.gpu.single_row import single_row_linear as single_kernel
from octavo_kernels.gpu.skinny_linear import skinny_config
from octavo_kernels.gpu.skinny_linear import skinny_linear as kernel
from octavo_kernels.gpu.skinny_linear import vocabulary_linear as vocabulary_kernel
from octavo_kernels.linear_ops import (
    MAX_SKINNY_TOKENS,
    MAX_TILES,
    NormInput,
    NormOutput,
    RowNorm,
    can_be_skinny,
    single_row_linear,
    skinny_linear,
    vocabulary_linear,
)
from octavo_kernels.reference.skinny_linear import embed_rows as embed_reference
from octavo_kernels.reference.skinny_linear import single_row_linear as single_reference
from octavo_kernels.reference.skinny_linear import skinny_linear as reference

WIDTH = 256


@pytest.fixture
def dtype(dtype_of_16_bits):
    return dtype_of_16_bits


def _zeros(device: torch.device) -> torch.Tensor:
    return torch.zeros(MAX_TILES, dtype=torch.int32, device=device)


@pytest.mark.parametrize("num_tokens", [1, 16, 17, 33, 64])
def test_plain_product_with_a_bias(num_tokens, draw, dtype, device, assert_close):
    x, weight, bias = draw(num_tokens, WIDTH), draw(128, WIDTH, scale=0.06), draw(128)
    arrivals = _zeros(device)
    found = kernel(x, weight, bias, gated=False, norm=None, add=None, arrivals=arrivals)
    exact = x.double() @ weight.double().T + bias.double()
    assert_close(found, exact, dtype)
    assert not arrivals.any()


@pytest.mark.parametrize("num_tokens", [1, 20, 64])
def test_gate(num_tokens, draw, dtype, device, assert_close):
    x, weight = draw(num_tokens, WIDTH), draw(256, WIDTH, scale=0.06)
    found = kernel(x, weight, None, gated=True, norm=None, add=None, arrivals=_zeros(device))
    expected = reference(x, weight, None, gated=True, norm=None, add=None)
    assert_close(found, expected, dtype, factor=2)


@pytest.mark.parametrize("num_tokens", [1, 5, 64])
def test_residual_and_what_the_next_norm_needs(num_tokens, draw, dtype, device, assert_close):
    x, weight = draw(num_tokens, WIDTH), draw(192, WIDTH, scale=0.06)
    residual, gamma = draw(num_tokens, 192), draw(192)

    def output() -> NormOutput:
        squares = torch.zeros(MAX_TILES, MAX_SKINNY_TOKENS, device=device)
        return NormOutput(residual, gamma, 1.0, torch.empty_like(residual), squares)

    mine, theirs = output(), output()
    arrivals = _zeros(device)
    found = kernel(x, weight, None, gated=False, norm=None, add=mine, arrivals=arrivals)
    expected = reference(x, weight, None, gated=False, norm=None, add=theirs)
    assert_close(found, expected, dtype, factor=2)
    assert_close(mine.scaled, theirs.scaled, dtype, factor=3)
    torch.testing.assert_close(
        mine.squares[:3, :num_tokens], theirs.squares[:3, :num_tokens], rtol=5e-3, atol=0.02
    )


@pytest.mark.parametrize("gated", [False, True])
def test_a_norm_is_applied_from_sums_of_squares(gated, draw, dtype, device, assert_close):
    num_tokens = 7
    residual, gamma = draw(num_tokens, WIDTH, scale=3.0), draw(WIDTH)
    weight = draw(256, WIDTH, scale=0.06)
    squares = torch.zeros(MAX_TILES, MAX_SKINNY_TOKENS, device=device)
    tiles = residual.float().square().view(num_tokens, -1, 64).sum(dim=-1)
    squares[: tiles.shape[1], :num_tokens] = tiles.T
    norm = NormInput(squares, tiles.shape[1], 1e-5)
    x = (residual.float() * gamma.float()).to(dtype)
    found = kernel(x, weight, None, gated=gated, norm=norm, add=None, arrivals=_zeros(device))
    wide = residual.double()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + 1e-5) * gamma.double()
    exact = normed @ weight.double().T
    if gated:
        gate, up = exact.chunk(2, dim=-1)
        exact = torch.nn.functional.silu(gate) * up
    assert_close(found, exact, dtype, factor=4)


@pytest.mark.parametrize("num_tokens", [2, 17, 33])
@pytest.mark.parametrize("width", [256, 1024, 3072, 4096, 8448, 14336, 18944, 28672])
def test_pieces_are_whole_steps(width, num_tokens):
    for num_rows in (64, 128, 1024, 4096, 8192):
        config = skinny_config(num_tokens, num_rows, width, gated=False)
        assert width % (config.split_k * config.block_k) == 0


def test_gates_of_more_tiles_than_cores_leave_room_for_two_on_a_core():
    many, few = (skinny_config(32, 64 * tiles, 4096, gated=True) for tiles in (224, 112))
    tile_bytes = 2 * (2 * many.block_n + many.block_m) * many.block_k
    assert 2 * many.num_stages * tile_bytes < 227 * 1024
    assert few.num_stages > many.num_stages


def test_pieces_of_long_rows_are_added_once_and_counters_reset(draw, dtype, device, assert_close):
    width = 1024
    assert skinny_config(3, 128, width, gated=False).split_k > 1
    x, weight, arrivals = draw(3, width), draw(128, width, scale=0.03), _zeros(device)
    for _ in range(2):
        found = kernel(x, weight, None, gated=False, norm=None, add=None, arrivals=arrivals)
        assert_close(found, x.double() @ weight.double().T, dtype)
        assert not arrivals.any()


@pytest.mark.parametrize(
    ("shape", "gated", "fits"),
    [((128, 256), False, True), ((128, 256), True, True), ((64, 256), True, False),
     ((100, 256), False, False), ((128, 100), False, False)],
)  # fmt: skip
def test_only_whole_tiles_are_skinny(shape, gated, fits):
    weight = torch.zeros(shape, dtype=torch.float16)
    assert can_be_skinny(weight, gated=gated) == fits


def test_too_many_tokens_are_refused():
    x, weight = torch.zeros(65, 256), torch.zeros(128, 256, dtype=torch.float16)
    with pytest.raises(ValueError, match="65"):
        skinny_linear(x, weight, arrivals=torch.zeros(MAX_TILES, dtype=torch.int32))


@pytest.mark.parametrize("width", [256, 448])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_single_row_between_norm_and_residual(
    width, gated, with_bias, draw, dtype, device, assert_close
):
    num_rows = 80
    x, residual = draw(1, width), draw(1, num_rows)
    weight = draw(2 * num_rows if gated else num_rows, width, scale=0.06)
    bias = draw(weight.shape[0]) if with_bias else None
    norm = RowNorm(draw(width), 1.0, 1e-5)
    found = single_kernel(x, weight, bias, gated=gated, norm=norm, residual=residual)
    expected = single_reference(x, weight, bias, gated=gated, norm=norm, residual=residual)
    assert_close(found, expected.float(), dtype, factor=3)


def test_a_plain_single_row(draw, dtype, device, assert_close):
    x, weight = draw(1, 512), draw(33, 512, scale=0.06)
    for overlaps in (False, True):
        found = single_kernel(
            x, weight, None, gated=False, norm=None, residual=None, overlaps=overlaps
        )
        assert_close(found, x.double() @ weight.double().T, dtype)


def test_a_single_row_is_one():
    with pytest.raises(ValueError, match="2, 256"):
        single_row_linear(torch.zeros(2, 256), torch.zeros(128, 256, dtype=torch.float16))


@pytest.mark.parametrize("num_rows", [256, 200])
@pytest.mark.parametrize("num_tokens", [2, 17, 64, 100])
def test_a_vocabulary_may_end_within_a_tile(num_rows, num_tokens, draw, dtype, assert_close):
    x, weight = draw(num_tokens, WIDTH), draw(num_rows, WIDTH, scale=0.06)
    found = vocabulary_kernel(x, weight)
    assert_close(found, x.double() @ weight.double().T, dtype)


@pytest.mark.parametrize("width", [192, 256])
def test_programs_of_a_vocabulary_take_several_rows(width, draw, dtype, assert_close, monkeypatch):
    monkeypatch.setattr(single_row, "MANY_ROWS", 50)
    monkeypatch.setattr(single_row, "MANY_ROWS_ELEMENTS", 4 * 256)
    x, weight = draw(1, width), draw(57, width, scale=0.06)
    found = single_kernel(x, weight, None, gated=False, norm=None, residual=None)
    assert_close(found, x.double() @ weight.double().T, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 2, 16, 17, 33, 64, 65, 129])
def test_logits_of_a_whole_vocabulary(num_tokens, draw, dtype, assert_close):
    x, weight = draw(num_tokens, 1024), draw(50_000 + 257, 1024, scale=0.03)
    assert_close(vocabulary_linear(x, weight), x.double() @ weight.double().T, dtype)


@pytest.mark.parametrize("width", [96, 256])
@pytest.mark.parametrize("scale", [1.0, 7.5])
def test_rows_of_the_embedding_with_their_norm(width, scale, draw, dtype, device, assert_close):
    embedding, norm = draw(50, width), RowNorm(draw(width), 1.0, 1e-5)
    token_ids = torch.tensor([49, 0, 7, 7], dtype=torch.int32, device=device)
    rows, normed = embed_kernel(token_ids, embedding, scale, norm)
    expected_rows, expected = embed_reference(token_ids, embedding, scale, norm)
    assert torch.equal(rows, expected_rows)
    assert normed is not None
    assert expected is not None
    assert_close(normed, expected.float(), dtype, factor=2)
    alone = norm_kernel(rows, norm.gamma, norm.eps, weight_offset=norm.gamma_offset)
    assert_close(normed, alone.float(), dtype)
    rows, normed = embed_kernel(token_ids, embedding, scale, None)
    assert normed is None
    assert torch.equal(rows, expected_rows)

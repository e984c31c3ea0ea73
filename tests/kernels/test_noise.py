"""The stateless noise: the same bits everywhere, the right distribution, no pattern."""

import math

import pytest
import torch
import triton
import triton.language as tl

from octavo_kernels.gpu import noise as kernel
from octavo_kernels.reference.noise import MIX_1, MIX_2, gumbel_noise, hash_u32, row_keys

SEEDS = [0, 1, -1, 2**31, 2**32 + 7, -(2**63), 2**63 - 1, 1234567890123456789]
POSITIONS = [0, 1, 131071, 2**31, 2**32, 5, 6, 7]
KNOWN_WORDS = [[1594942954, 1778531953], [1762925302, 1398637154], [1003089387, 551700876]]


@triton.jit
def _fill_kernel(seeds, positions, words, noise, num_ids: tl.constexpr):
    row = tl.program_id(0)
    key_1, key_2 = kernel.row_keys(tl.load(seeds + row), tl.load(positions + row))
    token = tl.arange(0, num_ids)
    word = kernel.hash_u32(key_1, key_2, token)
    tl.store(words + row * num_ids + token, word.to(tl.int32, bitcast=True))
    tl.store(noise + row * num_ids + token, kernel.gumbel(key_1, key_2, token))


def exact_mix(word: int) -> int:
    word &= 0xFFFFFFFF
    word = (word ^ word >> 16) * MIX_1 & 0xFFFFFFFF
    word = (word ^ word >> 15) * MIX_2 & 0xFFFFFFFF
    return word ^ word >> 16


def exact_hash(key_1: int, key_2: int, token_id: int) -> int:
    return exact_mix(exact_mix(token_id ^ key_1 & 0xFFFFFFFF) + key_2)


def test_words_are_those_of_unbounded_integers() -> None:
    seeds, positions = torch.tensor(SEEDS), torch.tensor(POSITIONS)
    ids = torch.tensor([0, 1, 49151, 2**31 - 1])
    words = hash_u32(seeds, positions, ids)
    keys_1, keys_2 = row_keys(seeds, positions)
    for row in range(len(SEEDS)):
        expected = [exact_hash(int(keys_1[row]), int(keys_2[row]), int(i)) for i in ids]
        assert [int(word) & 0xFFFFFFFF for word in words[row]] == expected


def test_known_words_never_change() -> None:
    """A seed promises the same tokens in the next release."""
    words = hash_u32(torch.tensor([42, 42, 43]), torch.tensor([7, 8, 7]), torch.tensor([0, 1]))
    assert [[int(word) & 0xFFFFFFFF for word in row] for row in words] == KNOWN_WORDS


def test_the_kernel_makes_the_same_words_and_noise(device: torch.device) -> None:
    seeds = torch.tensor(SEEDS, device=device)
    positions = torch.tensor(POSITIONS, device=device)
    words = torch.empty(len(SEEDS), 1024, dtype=torch.int32, device=device)
    noise = torch.empty(len(SEEDS), 1024, device=device)
    _fill_kernel[(len(SEEDS),)](seeds, positions, words, noise, num_ids=1024)
    ids = torch.arange(1024, device=device)
    assert torch.equal(words, hash_u32(seeds, positions, ids))
    torch.testing.assert_close(noise, gumbel_noise(seeds, positions, ids), rtol=1e-5, atol=1e-5)


def test_every_row_differs() -> None:
    keys_1, keys_2 = row_keys(
        torch.tensor(SEEDS).repeat_interleave(8), torch.tensor(POSITIONS).repeat(8)
    )
    assert len(set(zip(keys_1.tolist(), keys_2.tolist(), strict=True))) == 64


@pytest.mark.parametrize("along", ["tokens", "positions", "seeds"])
def test_noise_is_gumbel_in_every_direction(along: str) -> None:
    count = 100_000
    run, one = torch.arange(count), torch.zeros(1, dtype=torch.int64)
    arguments = {
        "tokens": (one, one, run),
        "positions": (one.expand(count), run, one),
        "seeds": (run, one.expand(count), one),
    }[along]
    noise = gumbel_noise(*arguments).flatten().double().sort().values
    exact = torch.exp(-torch.exp(-noise))
    empirical = (torch.arange(count) + 0.5) / count
    kolmogorov = (exact - empirical).abs().max().item() * math.sqrt(count)
    assert kolmogorov < 1.95  # one in a thousand by chance; the seeds are fixed


def test_neighbouring_rows_are_uncorrelated() -> None:
    noise = gumbel_noise(torch.arange(64), torch.arange(64), torch.arange(4096)).double()
    correlation = torch.corrcoef(noise)
    correlation.fill_diagonal_(0)
    assert correlation.abs().max().item() < 5 / math.sqrt(4096)


def test_the_upper_tail_is_as_long_as_a_vocabulary_needs() -> None:
    noise = gumbel_noise(torch.arange(8), torch.arange(8), torch.arange(500_000))
    top = noise.max().item()
    assert math.log(4e6) - 2 < top < math.log(4e6) + 7
    assert torch.isfinite(noise).all()

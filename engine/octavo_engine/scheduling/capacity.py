"""How many pages one sequence takes, and how long it may get. Pure; knows no pool and no tensor."""

from bisect import bisect_right
from collections.abc import Sequence


def ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def blocks_alone(windows: Sequence[int | None], block_size: int, num_tokens: int) -> int:
    """Pages that let one sequence reach `num_tokens` written positions in steps of any size.

    windows: of each KV group; None keeps every position.
    """
    num_blocks = ceil_div(num_tokens, block_size)
    return sum(
        num_blocks if window is None else min(num_blocks, ceil_div(window, block_size) + 1)
        for window in windows
    )


def capacity_tokens(
    windows: Sequence[int | None], block_size: int, num_blocks: int, limit: int
) -> int:
    """The longest sequence up to `limit`, in written positions, that num_blocks pages serve."""

    def blocks(num_tokens: int) -> int:
        return blocks_alone(windows, block_size, num_tokens)

    return bisect_right(range(limit + 1), num_blocks, key=blocks) - 1

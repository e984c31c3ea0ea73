"""Seeds for requests that bring none."""

import secrets


def draw_seed() -> int:
    """Unpredictable, in [0, 2**63): two unseeded requests never share their noise."""
    return secrets.randbits(63)

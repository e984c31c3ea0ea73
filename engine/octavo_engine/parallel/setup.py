"""Which rank this process is, from the variables that launchers of distributed programs set.

    RANK, WORLD_SIZE          this process among all
    LOCAL_RANK                its number on its host, which is its GPU's; default: RANK
    MASTER_ADDR, MASTER_PORT  where rank 0 listens
    TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RESTART_COUNT
                              of torchrun: True: it listens there itself; how often it began anew

Nothing here assumes one host. Knows no torch and no engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from octavo_engine.errors import ConfigError

LOOPBACK = "127.0.0.1"
START_LIMIT_S = 300.0
"""Time for all ranks to come up and meet: on several hosts they begin at different times."""
_GIVEN_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_ATTEMPT = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, kw_only=True)
class RankSetup:
    rank: int
    size: int
    local_rank: int
    address: str
    """Of rank 0."""
    port: int
    """Where rank 0's store listens; 0: rank 0 takes a free one."""
    is_store_given: bool = False
    """Whether the launcher's own store listens there, and rank 0 may be on another host."""
    attempt: int = 0
    """A store may still hold what the ranks of earlier attempts have said."""

    def environment(self) -> dict[str, str]:
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            _GIVEN_STORE: str(self.is_store_given),
            _ATTEMPT: str(self.attempt),
        }


def setup_on_this_host(rank: int, size: int, port: int = 0) -> RankSetup:
    return RankSetup(rank=rank, size=size, local_rank=rank, address=LOOPBACK, port=port)


def setup_from_launcher(environment: Mapping[str, str]) -> RankSetup | None:
    """None: no launcher has set the variables, so this process starts the other ranks itself.

    Raises ConfigError naming the variable that is missing or no number.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if rank >= size:
        raise ConfigError(f"RANK is {rank}, WORLD_SIZE is {size}: ranks are 0 to {size - 1}")
    if not environment.get("MASTER_ADDR"):
        raise ConfigError(f"RANK is {rank} of {size}, but MASTER_ADDR does not say where rank 0 is")
    return RankSetup(
        rank=rank,
        size=size,
        local_rank=_number(environment, "LOCAL_RANK") if "LOCAL_RANK" in environment else rank,
        address=environment["MASTER_ADDR"],
        port=_number(environment, "MASTER_PORT"),
        is_store_given=environment.get(_GIVEN_STORE) == "True",
        attempt=_number(environment, _ATTEMPT) if _ATTEMPT in environment else 0,
    )


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name)
    if value is None or not value.isdecimal():
        raise ConfigError(f"{name} is {value!r}, it must be a number")
    return int(value)

"""What rank 0 knows of the other ranks, and what is wrong with them. No threads, no sockets.

A rank is wrong when it says so, when nothing was heard of it for longer than the limit, when it
does not end a step within the limit, or when it made something else of a step than rank 0.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from octavo_engine.batch import StepResult
from octavo_engine.core.failures import error_of
from octavo_engine.errors import ConfigError, RankFailed
from octavo_engine.messages import EngineInfo
from octavo_engine.parallel import wire


@dataclass(frozen=True)
class Failure:
    rank: int
    error: Exception
    shows_in_stacks: bool = False
    """Where the ranks are tells why."""


@dataclass
class _Rank:
    heard_s: float | None = None
    """None: it has not come up yet."""
    info: EngineInfo | None = None
    num_done: int = 0


@dataclass(frozen=True)
class _Outcome:
    """What a rank made of a step."""

    step_id: int
    token_ids: list[int] | None
    """None: not to be compared, since rank 0 leaves out rows that failed on their own."""
    is_graph: bool
    num_padded_rows: int


@dataclass
class Watchdog:
    num_ranks: int
    """Rank 0 included."""
    limit_s: float
    version: str
    clock: Callable[[], float]
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _launched: dict[int, float] = field(default_factory=dict)
    """When each step began that some rank has not ended, by its number in the order of launch."""
    _num_launched: int = 0
    _num_compared: int = 0
    _outcomes: list[dict[int, _Outcome]] = field(default_factory=list)
    """By rank, of the steps from `_num_compared` on."""

    def __post_init__(self) -> None:
        self._ranks = {rank: _Rank() for rank in range(1, self.num_ranks)}

    def missing(self) -> list[int]:
        """Ranks that have not come up yet."""
        return [number for number, rank in self._ranks.items() if rank.heard_s is None]

    def infos(self) -> dict[int, EngineInfo]:
        """Of the ranks that are ready."""
        return {number: r.info for number, r in self._ranks.items() if r.info is not None}

    def take(self, report: wire.Report) -> Failure | None:
        """A message that has come."""
        number = report.rank
        rank = self._ranks.get(number)
        if rank is None:
            return Failure(
                number,
                ConfigError(f"a rank {number} has come, there are ranks 0 to {self.num_ranks - 1}"),
            )
        rank.heard_s = self.clock()
        match report:
            case wire.Hello():
                return self._greet(report)
            case wire.Ready(info=info):
                rank.info = info
            case wire.Failed(kind=kind, message=message):
                said = f"rank {number}: {message}"
                return Failure(number, error_of(kind, said) or RankFailed(said))
            case wire.Done():
                outcome = _Outcome(
                    report.step_id, report.token_ids, report.is_graph, report.num_padded_rows
                )
                return self._note(number, rank.num_done, outcome)
        return None

    def note_launch(self) -> int:
        """Of the next step; returns its number in the order of launch."""
        at = self._num_launched
        self._launched[at] = self.clock()
        self._outcomes.append({})
        self._num_launched += 1
        return at

    def note_result(self, at: int, result: StepResult) -> Failure | None:
        """Of rank 0; at: the number of the step in the order of launch."""
        ids = None if result.failed_rows else [token.token_id for token in result.sampled]
        outcome = _Outcome(result.step_id, ids, result.is_graph, result.num_padded_rows)
        return self._note(0, at, outcome)

    def overdue(self) -> Failure | None:
        """Called now and then, when all messages that have come were taken."""
        now_s = self.clock()
        for number, rank in self._ranks.items():
            if rank.heard_s is not None and now_s - rank.heard_s > self.limit_s:
                silence_s = now_s - rank.heard_s
                return self._hangs(number, f"was silent for {silence_s:.1f} s")
        for at, began_s in self._launched.items():
            if now_s - began_s > self.limit_s:
                return self._unended(at, now_s - began_s)
        return None

    def _unended(self, at: int, seconds: float) -> Failure:
        late = [number for number, rank in self._ranks.items() if rank.num_done <= at]
        return self._hangs(late[0] if late else 0, f"did not end step {at} within {seconds:.1f} s")

    def _hangs(self, number: int, what: str) -> Failure:
        said = f"rank {number} {what} (the limit is {self.limit_s:g} s)"
        return Failure(number, RankFailed(said), shows_in_stacks=True)

    def _greet(self, hello: wire.Hello) -> Failure | None:
        if hello.size != self.num_ranks:
            said = f"rank {hello.rank} is one of {hello.size} ranks, rank 0 of {self.num_ranks}"
            return Failure(hello.rank, ConfigError(said))
        if hello.version != self.version:
            said = f"rank {hello.rank} is octavo {hello.version}, rank 0 is {self.version}"
            return Failure(hello.rank, ConfigError(said))
        return None

    def _note(self, number: int, at: int, outcome: _Outcome) -> Failure | None:
        if number:
            self._ranks[number].num_done += 1
        of_step = self._outcomes[at - self._num_compared]
        for other_number, other in of_step.items():
            if (what := _difference(other, outcome)) is not None:
                said = f"ranks {other_number} and {number} differ at step {at}: {what}"
                return Failure(number, RankFailed(said), shows_in_stacks=True)
        of_step[number] = outcome
        self._forget_compared()
        return None

    def _forget_compared(self) -> None:
        while self._outcomes and len(self._outcomes[0]) == self.num_ranks:
            del self._outcomes[0]
            self._launched.pop(self._num_compared, None)
            self._num_compared += 1


def _difference(one: _Outcome, other: _Outcome) -> str | None:
    for name in ("step_id", "token_ids", "is_graph", "num_padded_rows"):
        values = getattr(one, name), getattr(other, name)
        if None not in values and values[0] != values[1]:
            return f"{name} is {values[0]} and {values[1]}"
    return None


def info_difference(own: EngineInfo, other: EngineInfo) -> str | None:
    """What two ranks do not agree on, their devices aside."""
    names = [each.name for each in msgspec.structs.fields(EngineInfo) if each.name != "device"]
    for name in names:
        if getattr(own, name) != getattr(other, name):
            return f"{name} is {getattr(own, name)} and {getattr(other, name)}"
    return None

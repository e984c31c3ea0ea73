"""What rank 0 holds against the other ranks: silence, steps without an end, differences."""

import re

import msgspec
import pytest

from octavo_engine.batch import SampledToken, StepResult
from octavo_engine.errors import CheckpointError, ConfigError, RankFailed
from octavo_engine.messages import EngineInfo
from octavo_engine.parallel import wire
from octavo_engine.parallel.plan import PlanChain
from octavo_engine.parallel.setup import RankSetup, setup_from_launcher
from octavo_engine.parallel.watchdog import Failure, Watchdog, info_difference

LIMIT_S = 10.0


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Watched:
    """A watchdog over ranks that have come."""

    def __init__(self, num_ranks: int = 3) -> None:
        self.clock = Clock()
        self.dog = Watchdog(num_ranks, LIMIT_S, "1.0", self.clock)
        for rank in range(1, num_ranks):
            assert self.dog.take(wire.Hello(rank, num_ranks, "1.0")) is None

    def wait(self, seconds: float, *alive: int) -> Failure | None:
        self.clock.now_s += seconds
        for rank in alive:
            assert self.dog.take(wire.Alive(rank)) is None
        return self.dog.overdue()


def result(step_id: int, *token_ids: int, **fields: object) -> StepResult:
    sampled = [SampledToken(row=row, token_id=id_) for row, id_ in enumerate(token_ids)]
    return StepResult(step_id=step_id, sampled=sampled, **fields)  # type: ignore[arg-type]  # fields of several types


def done(rank: int, step_id: int, *token_ids: int, is_graph: bool = False) -> wire.Done:
    return wire.Done(rank, step_id, list(token_ids), is_graph, 0)


def test_a_rank_that_speaks_is_fine_and_a_silent_one_is_named_with_the_limit() -> None:
    watched = Watched()
    assert watched.wait(9.0, 1, 2) is None
    failure = watched.wait(11.0, 1)
    assert failure is not None
    assert (failure.rank, failure.shows_in_stacks) == (2, True)
    assert str(failure.error) == "rank 2 was silent for 11.0 s (the limit is 10 s)"


def test_a_rank_that_has_not_come_yet_is_not_silent() -> None:
    dog = Watchdog(2, LIMIT_S, "1.0", clock := Clock())
    clock.now_s += 1000
    assert dog.overdue() is None
    assert dog.missing() == [1]


def test_the_rank_that_does_not_end_a_step_is_named() -> None:
    watched = Watched()
    for step_id in (7, 8):
        assert watched.dog.note_launch() == step_id - 7
        assert watched.dog.take(done(1, step_id, 3)) is None
    assert watched.dog.note_result(0, result(7, 3)) is None
    assert watched.dog.take(done(2, 7, 3)) is None
    failure = watched.wait(11.0, 1, 2)
    assert failure is not None
    assert failure.rank == 2
    assert "rank 2 did not end step 1 within 11.0 s" in str(failure.error)


def test_steps_that_all_have_ended_are_forgotten() -> None:
    watched = Watched()
    for step_id in range(50):
        at = watched.dog.note_launch()
        watched.dog.take(done(1, step_id, 3))
        watched.dog.note_result(at, result(step_id, 3))
        watched.dog.take(done(2, step_id, 3))
    assert watched.wait(11.0, 1, 2) is None
    assert not watched.dog._outcomes
    assert not watched.dog._launched


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (done(2, 5, 3, 4), r"token_ids is \[3, 5\] and \[3, 4\]"),
        (done(2, 6, 3, 5), "step_id is 5 and 6"),
        (done(2, 5, 3, 5, is_graph=True), "is_graph is False and True"),
    ],
)
@pytest.mark.parametrize("is_rank_0_first", [True, False])
def test_ranks_that_differ_are_told_apart(
    other: wire.Done, what: str, is_rank_0_first: bool
) -> None:
    watched = Watched()
    at = watched.dog.note_launch()
    own = result(5, 3, 5)
    if is_rank_0_first:
        assert watched.dog.note_result(at, own) is None
        failure = watched.dog.take(other)
    else:
        assert watched.dog.take(other) is None
        failure = watched.dog.note_result(at, own)
    assert failure is not None
    assert isinstance(failure.error, RankFailed)
    assert failure.shows_in_stacks
    assert str(failure.error).startswith("ranks ")
    numbers = what if is_rank_0_first else _swapped(what)
    assert re.search(numbers, str(failure.error))


def _swapped(what: str) -> str:
    name, values = what.split(" is ")
    return f"{name} is {' and '.join(reversed(values.split(' and ')))}"


def test_rows_that_failed_on_their_own_are_not_compared() -> None:
    watched = Watched(2)
    at = watched.dog.note_launch()
    watched.dog.note_result(at, result(5, 3, failed_rows={1: "no"}))
    assert watched.dog.take(done(1, 5, 3, 99)) is None


def test_errors_of_a_rank_keep_their_kind_and_say_whose_they_are() -> None:
    watched = Watched()
    failure = watched.dog.take(wire.Failed(2, "CheckpointError", "no weights"))
    assert failure is not None
    assert isinstance(failure.error, CheckpointError)
    assert str(failure.error) == "rank 2: no weights"


@pytest.mark.parametrize(
    ("hello", "sentence"),
    [
        (wire.Hello(1, 4, "1.0"), "rank 1 is one of 4 ranks, rank 0 of 3"),
        (wire.Hello(1, 3, "0.9"), "rank 1 is octavo 0.9, rank 0 is 1.0"),
        (wire.Hello(3, 3, "1.0"), "a rank 3 has come, there are ranks 0 to 2"),
    ],
)
def test_mixed_ranks_are_refused(hello: wire.Hello, sentence: str) -> None:
    failure = Watchdog(3, LIMIT_S, "1.0", Clock()).take(hello)
    assert failure is not None
    assert isinstance(failure.error, ConfigError)
    assert str(failure.error) == sentence


def test_infos_may_differ_in_the_device_alone() -> None:
    info = EngineInfo(
        vocab_size=1,
        max_model_len=2,
        block_size=16,
        num_blocks=3,
        max_num_seqs=4,
        dtype="float32",
        device="cuda:0",
    )
    assert info_difference(info, _replaced(info, device="cuda:1")) is None
    assert info_difference(info, _replaced(info, num_blocks=4)) == "num_blocks is 3 and 4"


def _replaced(info: EngineInfo, **fields: object) -> EngineInfo:
    return msgspec.structs.replace(info, **fields)


def test_hash_of_plans_depends_on_each_and_their_order() -> None:
    def chain(*plans: bytes) -> bytes:
        made = PlanChain()
        return [made.add(plan) for plan in plans][-1]

    assert chain(b"a", b"b") == chain(b"a", b"b")
    assert len({chain(b"a", b"b"), chain(b"b", b"a"), chain(b"b"), chain(b"a", b"a", b"b")}) == 4


LAUNCHED = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_a_rank_is_told_by_the_standard_variables() -> None:
    setup = RankSetup(rank=1, size=2, local_rank=1, address="10.0.0.1", port=29500)
    assert setup_from_launcher(LAUNCHED) == setup
    assert setup_from_launcher(LAUNCHED | {"LOCAL_RANK": "0"}).local_rank == 0  # type: ignore[union-attr]  # it is one
    assert setup_from_launcher(setup.environment()) == setup
    assert setup_from_launcher({"MASTER_ADDR": "10.0.0.1"}) is None


def test_torchrun_says_that_its_own_store_listens_and_which_attempt_it_is() -> None:
    elastic = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    setup = setup_from_launcher(LAUNCHED | elastic)
    assert setup is not None
    assert (setup.is_store_given, setup.attempt) == (True, 2)
    assert setup_from_launcher(setup.environment()) == setup


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"RANK": "2"}, "RANK is 2, WORLD_SIZE is 2: ranks are 0 to 1"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR does not say where rank 0 is"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http', it must be a number"),
    ],
)
def test_wrong_variables_are_refused_by_name(changed: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        setup_from_launcher(LAUNCHED | changed)

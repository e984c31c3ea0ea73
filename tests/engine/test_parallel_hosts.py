"""Ranks that a launcher starts, on two hosts: they meet over the network and answer as one rank,
unless they are not of one kind."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.engine.gguf_files import hf_weights, write_gguf
from tests.engine.rank0_child import KINDS, Answers, answers, config_of
from tests.engine.tiny_models import save_tiny
from tests.engine.two_hosts import two_hosts
from torch._C._distributed_c10d import HashStore, TCPStore

from octavo_engine.errors import CheckpointError, ConfigError
from octavo_engine.loading.source import SafetensorsSource
from octavo_engine.messages import PositionLogprobs, RequestDelta
from octavo_engine.parallel.driver import build_parallel_runner
from octavo_engine.parallel.rendezvous import build_share, open_store, own_entries
from octavo_engine.parallel.setup import LOOPBACK, RankSetup, setup_on_this_host
from octavo_engine.progress import silent

LOGPROB_TOLERANCE = 1e-4
LIMIT_S = 300


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
async def test_ranks_on_two_hosts_answer_as_one_rank(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "tiny.gguf", hf_weights())
    written = tmp_path / "answers.json"
    with two_hosts(tmp_path) as hosts:
        asking = ["-m", "tests.engine.rank0_child", str(model), "2", str(written)]
        serving = ["-m", "octavo_engine", "serve", str(model), "--tensor-parallel-size", "2"]
        ranks = [
            started([*host, sys.executable, *program], rank)
            for rank, (host, program) in enumerate(zip(hosts, (asking, serving), strict=True))
        ]
        try:
            expected = await answers(model, 1)
            assert [rank.wait(LIMIT_S) for rank in ranks] == [0, 0]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    found = msgspec.json.decode(written.read_bytes(), type=Answers)
    assert found.keys() == KINDS.keys()
    for kind in KINDS:
        assert tokens_of(found[kind]) == tokens_of(expected[kind]), kind
        pairs = zip(logprobs_of(found[kind]), logprobs_of(expected[kind]), strict=True)
        for one, other in pairs:
            assert one[0] == other[0]
            assert one[1] == pytest.approx(other[1], abs=LOGPROB_TOLERANCE)


def started(command: list[str], rank: int) -> "subprocess.Popen[bytes]":
    """A rank whose number on its host is 0, as on each of two hosts with one GPU."""
    setup = RankSetup(rank=rank, size=2, local_rank=0, address="host0", port=29500)
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    environment = os.environ | setup.environment() | threads
    return subprocess.Popen(command, env=environment)


def tokens_of(deltas: list[RequestDelta]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for delta in deltas:
        found.setdefault(delta.index, []).extend(delta.token_ids)
    return found


def logprobs_of(deltas: list[RequestDelta]) -> list[tuple[int, float]]:
    positions: list[PositionLogprobs | None] = []
    for delta in deltas:
        positions += [*(delta.prompt_logprobs or []), *(delta.logprobs or [])]
    tokens = [token for at in positions if at is not None for token in (at.chosen, *at.top)]
    return [(token.token_id, token.logprob) for token in tokens]


def given(port: int, attempt: int = 0) -> RankSetup:
    return RankSetup(
        rank=0,
        size=2,
        local_rank=0,
        address=LOOPBACK,
        port=port,
        is_store_given=True,
        attempt=attempt,
    )


def test_a_store_that_the_launcher_has_is_used_by_rank_0_too() -> None:
    launchers = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    setup = given(launchers.port)
    own_entries(open_store(setup), setup).set("reports", "here")
    other = own_entries(open_store(setup), setup)
    assert other.get("reports") == b"here"


def test_ranks_that_a_launcher_starts_again_do_not_see_what_the_last_ones_have_said() -> None:
    launchers = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    first, second = (
        own_entries(open_store(setup), setup)
        for setup in (given(launchers.port), given(launchers.port, attempt=1))
    )
    first.set("reports", "here")
    assert first.check(["reports"])
    assert not second.check(["reports"])


def test_a_port_that_is_taken_is_named() -> None:
    taken = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    with pytest.raises(ConfigError, match=rf"rank 0 at 127\.0\.0\.1:{taken.port} cannot be opened"):
        open_store(setup_on_this_host(0, 2, taken.port))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"intermediate_size": 64}, r"intermediate_size is 64, there \d+"),
        ({"rope_theta": 5e5}, r"rope_\w+ is .*500000.0.*, there .*10000.0"),
    ],
)
def test_ranks_whose_hosts_hold_different_models_are_refused_before_a_weight_is_read(
    overrides: dict[str, float], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny("llama", tmp_path / "0")
    save_tiny("llama", tmp_path / "1", **overrides)
    store = HashStore()
    setups = [setup_on_this_host(rank, 2) for rank in range(2)]
    configs = [config_of(tmp_path / str(rank), 2) for rank in range(2)]
    for way in ("tensors", "read"):
        monkeypatch.setattr(SafetensorsSource, way, failing("a weight is read"))
    waits = failing("it waits for the other")
    monkeypatch.setattr("octavo_engine.parallel.rendezvous._make_group", waits)
    with pytest.raises(AssertionError, match="waits for the other"):
        build_share(configs[0], setups[0], store, "cpu", None, silent)
    with pytest.raises(CheckpointError, match=rf"is not rank 0's: {sentence}"):
        build_share(configs[1], setups[1], store, "cpu", None, silent)


def failing(message: str) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise AssertionError(message)

    return fail


def test_more_processes_than_ranks_are_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given(29500).environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORLD_SIZE", "4")
    sentence = (
        "tensor_parallel_size 2 needs RANK 0 of WORLD_SIZE 2 here, not RANK 0 of WORLD_SIZE 4"
    )
    with pytest.raises(ConfigError, match=sentence):
        build_parallel_runner(config_of(tmp_path, 2), None, silent, "console")

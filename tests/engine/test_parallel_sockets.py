"""Where ranks listen for each other: addresses of both kinds, and what is said of a wrong one."""

import re
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq
from torch._C._distributed_c10d import HashStore, TCPStore

from octavo_engine.config import EngineConfig, ModelSettings
from octavo_engine.errors import ConfigError
from octavo_engine.parallel import crew as crew_module
from octavo_engine.parallel import wire
from octavo_engine.parallel.crew import Crew
from octavo_engine.parallel.gloo_group import GlooGroup
from octavo_engine.parallel.rendezvous import open_store
from octavo_engine.parallel.setup import RankSetup
from octavo_engine.parallel.sockets import Sender, connect, make_receiver, resolve, with_port
from octavo_engine.version import octavo_version

LIMIT_S = 60.0
NOBODYS = "192.0.2.1"
"""Kept for documentation: no host has it."""


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


ADDRESSES = ["127.0.0.1", "localhost", *(["::1"] if has_ipv6() else [])]


def ranks_at(address: str) -> tuple[TCPStore, list[RankSetup]]:
    """Rank 0's store, and the setups of two ranks that know its port."""
    setup = RankSetup(rank=0, size=2, local_rank=0, address=address, port=0)
    store = open_store(setup)
    port = store.port
    return store, [
        RankSetup(rank=rank, size=2, local_rank=rank, address=address, port=port)
        for rank in range(2)
    ]


@pytest.mark.parametrize("address", ADDRESSES)
def test_ranks_speak_with_each_other_at_an_address(address: str) -> None:
    server, setups = ranks_at(address)
    store = open_store(setups[1])
    crew = Crew(setups[0], server, LIMIT_S)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    commands, reports = make_receiver(context), Sender(context)
    connect(commands, store.get("commands/1").decode())
    connect(reports.socket, store.get("reports").decode())
    boot = wire.Boot(EngineConfig(model=ModelSettings(path="model")), "cpu", "console")
    crew.start([], boot)
    reports.socket.send(wire.encode(wire.Hello(1, 2, octavo_version())))
    said: list[wire.Command] = []
    while boot not in said:
        assert commands.poll(LIMIT_S * 1000), "nothing came"
        said.append(wire.decode_command(commands.recv()))
    crew.close()
    commands.close(0)
    reports.close(0)
    context.term()


@pytest.mark.parametrize("address", ADDRESSES)
def test_ranks_compute_together_at_an_address(address: str) -> None:
    server, setups = ranks_at(address)
    stores = [server, open_store(setups[1])]
    with ThreadPoolExecutor(2) as pool:
        pairs = zip(setups, stores, strict=True)
        made = [pool.submit(GlooGroup, setup, store, LIMIT_S) for setup, store in pairs]
        groups = [group.result(LIMIT_S) for group in made]
        found = [pool.submit(group.smallest, 5 + group.rank) for group in groups]
        assert [value.result(LIMIT_S) for value in found] == [5, 5]


def test_a_name_of_both_kinds_is_that_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    ipv6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
    ipv4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
    for found in ([ipv6, ipv4], [ipv4, ipv6]):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *given, found=found, **named: found)
        assert resolve("both") == (socket.AF_INET, "127.0.0.1")


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_taken_port_is_named(address: str) -> None:
    store, setups = ranks_at(address)
    place = re.escape(with_port(address, store.port))
    with pytest.raises(ConfigError, match=f"at {place} cannot be opened"):
        open_store(setups[0])


def test_numbers_of_ipv6_stand_in_brackets() -> None:
    assert with_port("::1", 29500) == "[::1]:29500"
    assert with_port("10.0.0.1", 29500) == "10.0.0.1:29500"


@pytest.mark.parametrize(
    ("is_store_given", "sentence"),
    [
        (False, f"^MASTER_ADDR '{NOBODYS}' is not rank 0's own: "),
        (True, f"^the address towards the launcher's store '{NOBODYS}' is not rank 0's own: "),
    ],
)
def test_an_address_that_is_not_rank_0s_is_named_by_where_it_comes_from(
    is_store_given: bool, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew_module, "address_towards", lambda address: NOBODYS)
    address = "host0" if is_store_given else NOBODYS
    setup = RankSetup(
        rank=0, size=2, local_rank=0, address=address, port=1, is_store_given=is_store_given
    )
    with pytest.raises(ConfigError, match=sentence):
        Crew(setup, HashStore(), LIMIT_S)

"""Where ranks find each other: a store at rank 0 with the addresses of its sockets, then the group
over which they build their shares of the model together. Imports torch."""

import json
import socket
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from octavo_engine.batch import Runner
from octavo_engine.config import EngineConfig
from octavo_engine.errors import CheckpointError, ConfigError
from octavo_engine.loading.model_files import ModelFiles, open_model
from octavo_engine.parallel.group import Group
from octavo_engine.parallel.on_device import OnDevice
from octavo_engine.parallel.setup import START_LIMIT_S, RankSetup
from octavo_engine.parallel.sockets import resolve, with_port
from octavo_engine.progress import Report
from octavo_engine.runner.build import build_runner

if TYPE_CHECKING:
    from octavo_engine.structured.compiler import GrammarCompiler

_GROUP_GRACE = 2.0
"""A group's own calls time out later than rank 0 notices a silent rank, which says more."""


def open_store(setup: RankSetup) -> TCPStore:
    """Rank 0's is the server, unless the launcher has one. Raises ConfigError where it cannot be
    had or reached."""
    timeout = timedelta(seconds=START_LIMIT_S)
    is_ours = setup.rank == 0 and not setup.is_store_given
    try:
        if not is_ours:
            return TCPStore(setup.address, setup.port, is_master=False, timeout=timeout)
        # By itself it would listen on all of the host's addresses.
        family, number = resolve(setup.address)
        listening = socket.create_server((number, setup.port), family=family)
        return TCPStore(
            setup.address,
            listening.getsockname()[1],
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
    except (OSError, RuntimeError) as error:
        whose = "of the launcher" if setup.is_store_given else "of rank 0"
        raise ConfigError(
            f"rank {setup.rank}: the store {whose} at {with_port(setup.address, setup.port)} "
            f"cannot be {'opened' if is_ours else 'reached'}: {error}"
        ) from error


def own_entries(store: Store, setup: RankSetup) -> Store:
    """What the ranks of this attempt say to each other."""
    return PrefixStore(f"octavo/{setup.attempt}", store)


def build_share(
    config: EngineConfig,
    setup: RankSetup,
    store: Store,
    device_type: str,
    compiler: "GrammarCompiler | None",
    report: Report,
) -> tuple[Runner, Group]:
    """The runner of this rank's share, which needs the group until it is closed; all ranks do this
    at the same time. Raises as `build_runner` does, and CheckpointError where ranks find different
    files."""
    device = torch.device(device_type)
    if device_type == "cuda":
        device = torch.device("cuda", setup.local_rank)
        torch.cuda.set_device(device)
    _refuse_other_files(config, setup, store)
    group = _make_group(setup, store, device, config.parallel.rank_timeout_s)
    runner = build_runner(config, compiler, report, group=group, device=device)
    return (OnDevice(runner, device) if device_type == "cuda" else runner), group


def _make_group(setup: RankSetup, store: Store, device: torch.device, limit_s: float) -> Group:
    """Waits for the other ranks."""
    store.set(f"here/{setup.rank}", "")
    everybody = [f"here/{rank}" for rank in range(setup.size)]
    store.wait(everybody, timedelta(seconds=START_LIMIT_S))
    timeout_s = max(START_LIMIT_S, _GROUP_GRACE * limit_s)
    if device.type == "cpu":
        from octavo_engine.parallel.gloo_group import GlooGroup

        return GlooGroup(setup, store, timeout_s)
    from octavo_engine.parallel.nccl_group import NcclGroup

    return NcclGroup(setup, store, device, timeout_s)


def _refuse_other_files(config: EngineConfig, setup: RankSetup, store: Store) -> None:
    """Before any weight is read: hosts may hold different versions of a model."""
    files = open_model(config.model.path, config.model.load_format)
    facts = _facts(files)
    store.set(f"model/{setup.rank}", json.dumps(facts))
    if setup.rank == 0:
        return
    of_rank0 = json.loads(store.get("model/0"))
    for what in dict.fromkeys([*facts, *of_rank0]):
        own, other = facts.get(what), of_rank0.get(what)
        if own != other:
            raise CheckpointError(f"{files.name} is not rank 0's: {what} is {own}, there {other}")


def _facts(files: ModelFiles) -> dict[str, Any]:
    """What must be equal, by a name for messages."""
    infos = files.source.infos()
    tensors = sorted((name, info.shape, info.dtype) for name, info in infos.items())
    digest = blake2b(repr(tensors).encode(), digest_size=16).hexdigest()
    # The config first, since it says more.
    config: dict[str, Any] = json.loads(json.dumps(dict(files.raw_config), default=str))
    return {**config, "number of tensors": len(infos), "hash of its tensors' shapes": digest}

"""Rank 0's side of the start: other ranks, the group, its own share of the model.

Rank 0 runs in the core's process, so that its launches cost no message; the others are processes of
their own, started here unless a launcher has started them (see `setup`).
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

import torch

from octavo_engine.batch import Runner
from octavo_engine.config import EngineConfig
from octavo_engine.errors import ConfigError
from octavo_engine.loading.config_ahead import ConfigReading
from octavo_engine.loading.model_files import open_model
from octavo_engine.logs import LogFormat
from octavo_engine.parallel import wire
from octavo_engine.parallel.crew import Crew
from octavo_engine.parallel.group import Group
from octavo_engine.parallel.processes import RankProcess
from octavo_engine.parallel.rendezvous import build_share, open_store, own_entries
from octavo_engine.parallel.runner import ParallelRunner
from octavo_engine.parallel.setup import setup_from_launcher, setup_on_this_host
from octavo_engine.parallel.shares import refuse_impossible
from octavo_engine.progress import Report
from octavo_engine.runner.load import refuse_shared_fallback
from octavo_engine.runner.sizing import choose_device

if TYPE_CHECKING:
    from octavo_engine.structured.compiler import GrammarCompiler

_POLL_S = 0.05

Share = tuple[Runner, Group]


def build_parallel_runner(
    config: EngineConfig,
    compiler: "GrammarCompiler | None",
    report: Report,
    log_format: LogFormat,
    reading: ConfigReading | None = None,
) -> ParallelRunner:
    """reading: of the model's config, by another process. Raises ConfigError for sizes that cannot
    work before anything is started, later what went wrong on any rank; then no process is left
    behind."""
    num_ranks = config.parallel.tensor_parallel_size
    launched = setup_from_launcher(os.environ)
    setup = launched or setup_on_this_host(0, num_ranks)
    if (setup.rank, setup.size) != (0, num_ranks):
        raise ConfigError(
            f"tensor_parallel_size {num_ranks} needs RANK 0 of WORLD_SIZE {num_ranks} here, not "
            f"RANK {setup.rank} of WORLD_SIZE {setup.size}"
        )
    device = choose_device(config.model.device)
    _refuse_before_start(config, device, reading, is_one_host=launched is None)
    server = open_store(setup)
    store = own_entries(server, setup)
    crew = Crew(setup, store, config.parallel.rank_timeout_s)
    num_threads = torch.get_num_threads()
    try:
        processes = [] if launched else _start_processes(num_ranks, server.port, device)
        crew.start(processes, wire.Boot(config, device.type, log_format))
        local, group = _on_thread(
            lambda: build_share(config, setup, store, device.type, compiler, report), crew
        )
        _wait_until_ready(crew, local)
    except BaseException:
        crew.close()
        torch.set_num_threads(num_threads)
        raise
    return ParallelRunner(local, crew, group, lambda: torch.set_num_threads(num_threads))


def _refuse_before_start(
    config: EngineConfig,
    device: torch.device,
    reading: ConfigReading | None,
    *,
    is_one_host: bool,
) -> None:
    num_ranks = config.parallel.tensor_parallel_size
    files = open_model(config.model.path, config.model.load_format)
    if not files.is_in_table:
        refuse_shared_fallback(files, num_ranks)
    refuse_impossible(files.model_config(reading), num_ranks)
    if device.type == "cuda" and is_one_host and torch.cuda.device_count() < num_ranks:
        raise ConfigError(
            f"tensor_parallel_size {num_ranks} needs as many GPUs, {torch.cuda.device_count()} "
            "are here"
        )


def _start_processes(num_ranks: int, port: int, device: torch.device) -> list[RankProcess]:
    """The other ranks, on this host, and an equal share of its cores for each of them and us."""
    environment = dict(os.environ)
    if device.type == "cpu":
        num_threads = max(1, torch.get_num_threads() // num_ranks)
        torch.set_num_threads(num_threads)
        environment["OMP_NUM_THREADS"] = str(num_threads)
    ranks = range(1, num_ranks)
    return [RankProcess(setup_on_this_host(rank, num_ranks, port), environment) for rank in ranks]


def _on_thread(build: Callable[[], Share], crew: Crew) -> Share:
    """Its result; or, when another rank fails, that error at once: `build` may wait for the rank
    for ever and is left alone."""
    future: Future[Share] = Future()

    def run() -> None:
        try:
            future.set_result(build())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="octavo-load-rank", daemon=True).start()
    while not future.done():
        time.sleep(_POLL_S)
        if crew.failure is not None:
            raise crew.failure
    error = future.exception()
    if isinstance(error, Exception):
        raise crew.explain(error)
    return future.result()


def _wait_until_ready(crew: Crew, local: Runner) -> None:
    """The other ranks have loaded, and come to the same. Raises what goes wrong with one."""
    while not crew.are_ready(local.info):
        if crew.failure is not None:
            raise crew.failure
        time.sleep(_POLL_S)

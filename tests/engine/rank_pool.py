"""Many models on several ranks, without rank 0's watching: `python -m tests.engine.rank_pool`.

Reads a JSON list of cases from standard input and writes the outcomes to standard output. What is
slow, the imports, is done once: the ranks are forked, and each builds its share of one model after
the other. What forks has one thread, since a lock that another one holds stays locked in the child:
the store's server, which has one, is rank 0's.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from octavo_engine.sampling_params import SamplingParams

TIME_LIMIT_S = 900


class Case(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    num_ranks: int
    prompts: list[list[int]]
    num_new: int
    params: list[SamplingParams]
    """One for each prompt."""
    chunk: int = 10**6
    is_gpu_runner: bool = False
    """The runner of GPUs, on the CPU and without captures."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    error: str | None
    """None: it ran."""
    tokens: list[list[int]]
    logprobs: list[list[dict[int, float]]]
    """Of each sampled token the likeliest, by id."""


def run_cases(cases: list[Case]) -> list[Outcome]:
    """In the order of the cases."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.engine.rank_pool"],
        input=msgspec.json.encode(cases),
        stdout=subprocess.PIPE,
        env=environment,
        timeout=TIME_LIMIT_S,
        check=True,
    )
    return msgspec.json.decode(ended.stdout, type=list[Outcome])


def _run_rank(
    rank: int, num_ranks: int, listening: socket.socket, cases: list[Case], out: Path
) -> None:
    import torch.distributed as dist

    from octavo_engine.parallel.setup import setup_on_this_host

    port = listening.getsockname()[1]
    setup = setup_on_this_host(rank, num_ranks, port)
    if rank == 0:
        store = dist.TCPStore(
            setup.address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
    else:
        store = dist.TCPStore(setup.address, port, is_master=False)
    outcomes = []
    for number, case in enumerate(cases):
        own_store = dist.PrefixStore(f"{num_ranks}/{number}", store)
        outcomes.append(_run_case(case, setup, own_store))
    store.set(f"done/{rank}", "")
    if rank == 0:
        out.write_bytes(msgspec.json.encode(outcomes))
        store.wait([f"done/{other}" for other in range(num_ranks)])


def _run_case(case: Case, setup: Any, store: Any) -> Outcome:
    from tests.engine.runner_driver import Job, run_jobs

    from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, ParallelSettings
    from octavo_engine.errors import OctavoError
    from octavo_engine.parallel.rendezvous import build_share
    from octavo_engine.progress import silent

    config = EngineConfig(
        model=ModelSettings(path=case.folder, device="cpu", dtype="float32"),
        cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02),
        parallel=ParallelSettings(tensor_parallel_size=case.num_ranks),
    )
    try:
        runner, group = build_share(config, setup, store, "cpu", None, silent)
    except OctavoError as error:
        return Outcome(error=str(error), tokens=[], logprobs=[])
    if case.is_gpu_runner:
        runner.close()
        runner = _gpu_runner(config, group)
    jobs = [
        Job(prompt, case.num_new, params, seed=params.seed or 0)
        for prompt, params in zip(case.prompts, case.params, strict=True)
    ]
    outcomes = run_jobs(runner, jobs, chunk=case.chunk)
    runner.close()
    logprobs: list[list[dict[int, float]]] = [[] for _ in jobs]
    for result in outcomes[0].results:
        for token in result.sampled:
            if token.logprobs is not None:
                logprobs[token.row].append({t.token_id: t.logprob for t in token.logprobs.top})
    return Outcome(error=None, tokens=[o.token_ids for o in outcomes], logprobs=logprobs)


def _gpu_runner(config: Any, group: Any) -> Any:
    import torch

    from octavo_engine.cuda.build import LoadedModel, RunnerParts
    from octavo_engine.layers.linear import Build
    from octavo_engine.loading.model_files import load_decoder, open_model
    from octavo_engine.model_config import kv_groups
    from octavo_engine.parallel.shares import head_shares
    from octavo_engine.runner.kv_cache import PageShape
    from octavo_engine.runner.sizing import Sizes

    cpu = torch.device("cpu")
    files = open_model(config.model.path)
    model_config = files.model_config()
    groups = kv_groups([layer.window for layer in model_config.layers])
    model = load_decoder(files, model_config, groups, Build(cpu, torch.float32, group=group))
    shape = PageShape(
        num_kv_heads=head_shares(model_config, group.rank, group.size).num_kv_heads,
        block_size=16,
        head_dim=model_config.head_dim,
        dtype=torch.float32,
    )
    loaded = LoadedModel(
        model=model,
        config=model_config,
        groups=groups,
        shape=shape,
        context_len=256,
        group=group,
    )
    sizes = Sizes(max_model_len=256, max_num_seqs=32, num_blocks=96, num_host_blocks=0)
    return RunnerParts(config, loaded, cpu).runner(sizes)


def main() -> None:
    import torch
    from transformers import LlamaConfig  # noqa: F401 - its imports take seconds

    import octavo_engine.parallel.gloo_group
    import octavo_engine.parallel.rendezvous  # noqa: F401 - before the fork
    from octavo_engine.logs import configure_logs
    from octavo_engine.parallel.setup import LOOPBACK

    configure_logs("console")
    torch.set_num_threads(1)
    cases = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Case])
    outcomes: dict[int, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for num_ranks in sorted({case.num_ranks for case in cases}):
            own = [case for case in cases if case.num_ranks == num_ranks]
            out = Path(folder) / str(num_ranks)
            assert len(list(Path("/proc/self/task").iterdir())) == 1
            with socket.create_server((LOOPBACK, 0)) as listening:
                pids = [_fork(rank, num_ranks, listening, own, out) for rank in range(num_ranks)]
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
            if any(codes):
                raise SystemExit(f"{num_ranks} ranks have ended with {codes}")
            outcomes[num_ranks] = json.loads(out.read_bytes())
    sys.stdout.write(json.dumps([outcomes[case.num_ranks].pop(0) for case in cases]))


def _fork(rank: int, num_ranks: int, listening: socket.socket, cases: list[Case], out: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _run_rank(rank, num_ranks, listening, cases, out)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

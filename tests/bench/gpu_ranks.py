"""One model on two GPUs: `python -m tests.bench.gpu_ranks` prints a table and appends to a CSV.

Milliseconds a decode step of a model with random weights and its throughput; with `--parity`
whether tiny models give on 2 ranks what they give on 1 (`ranks_parity`), also on a CPU: `--device
cpu`. Needs two GPUs of one host and starts its ranks itself. Figures of vLLM 0.26.0 and goals are
those for two H200s.
"""

import argparse
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench.gpu import (
    DeviceTimes,
    decode_rows,
    run,
    throughput_row,
)
from tests.bench.gpu_dummy import write_config
from tests.bench.gpu_rows import Row, append_rows, print_row
from tests.bench.gpu_workloads import LLAMA_8B, fixed, mixed
from tests.bench.ranks_parity import DTYPES, FAMILIES, parity_rows, runner_of

from octavo_engine.config import (
    EngineConfig,
    ModelSettings,
    ParallelSettings,
    SchedulerSettings,
)
from octavo_engine.core.engine import EngineCore
from octavo_engine.core.in_process import settle_process

RESULTS = Path(__file__).parent / "results" / "h200_ranks.csv"
LLAMA_70B: dict[str, Any] = LLAMA_8B | {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
}
DECODES: dict[str, list[tuple[int, float, float | None]]] = {
    "llama8b": [(1, 3.47, 2.6), (32, 4.01, 3.2), (128, 4.92, 4.2)],
    "llama70b": [(1, 21.2, 18.5), (32, 22.3, 20.0)],
}
"""Batch, vLLM's ms a step, the goal."""
MIXED = {"llama8b": (16156.0, 19387.0), "llama70b": (2782.0, 3000.0)}
SHAPES = {"llama8b": LLAMA_8B, "llama70b": LLAMA_70B}


class Rank0Times(DeviceTimes):
    """Of rank 0's own steps."""

    def _note(self, handle: Any) -> None:
        super()._note(getattr(handle, "local", handle))


def step_rows(model: str, num_ranks: int) -> Iterable[Row]:
    scheduler = SchedulerSettings(
        max_num_seqs=1024, max_num_batched_tokens=8192, max_queued_requests=100_000
    )
    config = EngineConfig(
        model=ModelSettings(
            path=str(write_config(SHAPES[model])),
            device="cuda",
            load_format="dummy",
            max_model_len=8192,
        ),
        scheduler=scheduler,
        parallel=ParallelSettings(tensor_parallel_size=num_ranks),
    )
    with runner_of(config) as runner:
        core = EngineCore(runner, scheduler)
        settle_process()
        run(core, fixed(64, 100, 16, 999))
        run(core, fixed(4, 2000, 8, 998))
        times = Rank0Times(core)
        for batch, vllm, goal in DECODES[model]:
            for row in decode_rows(core, times, batch, vllm=vllm, goal=goal):
                yield replace(row, case=f"{model}, {num_ranks} ranks, {row.case}")
        vllm, goal = MIXED[model]
        jobs = mixed(1000, 0)
        case = f"{model}, {num_ranks} ranks, mixed1000"
        times.take()
        whole = throughput_row(core, case, jobs, vllm, goal, of_prompt=False)
        yield whole
        steps, _ = times.take()
        wall_ms = sum(job.num_new for job in jobs) / whole.value * 1e3
        yield Row(f"{case}, device at work", 100 * sum(steps) / wall_ms, "% of time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parity", action="store_true", help="only the tiny models")
    parser.add_argument("--families", nargs="+", default=FAMILIES, help="of the tiny models")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="of them")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="with --parity")
    parser.add_argument("--model", choices=[*SHAPES, "both"], default="llama8b")
    parser.add_argument("--ranks", type=int, default=2)
    folder = os.environ.get("OUT")
    default = RESULTS if folder is None else Path(folder) / "gpu_ranks.csv"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    if arguments.parity:
        rows = parity_rows(arguments.families, arguments.device, arguments.dtypes)
    else:
        models = list(SHAPES) if arguments.model == "both" else [arguments.model]
        rows = (row for model in models for row in step_rows(model, arguments.ranks))
    for row in rows:
        print_row(row)
        if arguments.device == "cuda":
            append_rows(arguments.out, [row])
    sys.stdout.flush()


if __name__ == "__main__":
    main()

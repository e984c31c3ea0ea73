"""`octavo fit`: whether a model fits on a kind of GPU, told from its config."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo_engine.cli.termination import EXIT_FAILED, explain
from octavo_engine.config import EngineConfig
from octavo_engine.errors import OctavoError
from octavo_engine.memory_facts import GIB

if TYPE_CHECKING:
    from octavo_engine.fit import Fit

GpusOption = Annotated[
    str, typer.Option(help="Kind of GPU, such as h200, or its memory, such as 80GiB.")
]


def fit(config: EngineConfig, gpus: GpusOption) -> None:
    """Print what a model takes of a GPU's memory and how many tokens are left room for.

    The folder needs no weights. Takes the options of `serve`; exits with 1 where it does not fit.
    """
    try:
        planned = _plan(config, gpus)
    except OctavoError as error:
        termination = explain(error)
        typer.echo(f"octavo: {termination.message}", err=True)
        raise typer.Exit(termination.exit_code) from error
    for name, value in _lines(planned):
        typer.echo(f"{name:<17}{value:>14}")
    if not planned.is_enough:
        typer.echo(
            f"octavo: does not fit: {planned.taken_bytes / GIB:.2f} GiB of "
            f"{planned.limit_bytes / GIB:.2f} GiB are taken, which leaves room for "
            f"{planned.max_model_len:,} tokens of context, {planned.asked_model_len:,} are needed",
            err=True,
        )
        raise typer.Exit(EXIT_FAILED)


def _plan(config: EngineConfig, gpus: str) -> "Fit":
    import torch

    from octavo_engine.fit import HOPPER, FitQuestion, gpu_bytes, plan_fit
    from octavo_engine.loading.model_files import read_model
    from octavo_engine.quantization.choose import choose_scheme
    from octavo_engine.runner.sizing import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, choose_dtype

    total_bytes = gpu_bytes(gpus)
    model, scheme = read_model(Path(config.model.path))
    settings = config.scheduler
    question = FitQuestion(
        gpu_bytes=total_bytes,
        is_hopper=gpus.lower() in HOPPER,
        dtype=choose_dtype(config.model.dtype, model.checkpoint_dtype, torch.device("cuda")),
        scheme=choose_scheme(config.model.quantization, scheme, is_gguf=False),
        utilization=config.cache.gpu_memory_utilization,
        kv_cache_dtype=config.cache.kv_cache_dtype,
        num_ranks=config.parallel.tensor_parallel_size,
        block_size=config.cache.block_size,
        max_num_seqs=settings.max_num_seqs or MAX_NUM_SEQS["cuda"],
        max_step_tokens=settings.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS["cuda"],
        max_model_len=config.model.max_model_len,
    )
    return plan_fit(model, question)


def _lines(planned: "Fit") -> list[tuple[str, str]]:
    parts = {
        "GPU, usable": planned.limit_bytes,
        "weights": planned.weights_bytes,
        "tables": planned.tables_bytes,
        "activations": planned.activations_bytes,
        "graphs": planned.graphs_bytes,
        "CUDA and margin": planned.others_bytes,
        "KV pages": planned.num_kv_tokens * planned.kv_token_bytes,
    }
    lines = [(name, f"{value / GIB:.2f} GiB") for name, value in parts.items()]
    lines.append(("KV tokens", f"{planned.num_kv_tokens:,}"))
    lines.append(("largest context", f"{planned.max_model_len:,}"))
    return lines

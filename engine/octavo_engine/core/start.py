"""Starts a runner: what needs no torch begins before torch is imported, and goes on beside it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from octavo_engine.batch import Runner
from octavo_engine.config import EngineConfig
from octavo_engine.core.ahead import prepare_gpu
from octavo_engine.loading.config_ahead import reading_ahead
from octavo_engine.logs import LogFormat
from octavo_engine.progress import Report, silent

if TYPE_CHECKING:
    from octavo_engine.structured.compiler import GrammarCompiler


def start_runner(
    config: EngineConfig,
    compiler: "GrammarCompiler | None" = None,
    report: Report = silent,
    log_format: LogFormat = "console",
) -> Runner:
    """Raises as `build_runner` and `build_parallel_runner` do, one of which makes it."""
    with reading_ahead(config.model.path) as reading:
        if config.model.device != "cpu":
            prepare_gpu()
        if config.parallel.tensor_parallel_size > 1:
            with uncollected():
                from octavo_engine.parallel.driver import build_parallel_runner

            return build_parallel_runner(config, compiler, report, log_format, reading)
        with uncollected():
            from octavo_engine.runner.build import build_runner

        return build_runner(config, compiler, report, reading=reading)


@contextmanager
def uncollected() -> Iterator[None]:
    """For imports: what they make stays, and walking it again and again takes an eighth of their
    time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

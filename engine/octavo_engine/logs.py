"""Logs of the command line programs: structlog, and what libraries log, in one form on stderr."""

import logging
import sys
from typing import Literal

import structlog

LogFormat = Literal["json", "console"]


def configure_logs(log_format: LogFormat, level: int = logging.INFO) -> None:
    """Sets up structlog and the standard library's root logger for this process."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    final: structlog.types.Processor
    if log_format == "json":
        final = structlog.processors.JSONRenderer()
    else:
        shared.pop()  # the console renderer formats exceptions itself
        # Not by rich, its default: that draws every local variable of every frame, which takes
        # seconds, waits for the device where one is a tensor, and tells what users wrote.
        final = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for each request

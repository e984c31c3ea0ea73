"""Tells exceptions in the log as Python does: structlog by itself has rich draw each local variable
of each frame, tensors too, which takes seconds."""

import structlog

structlog.get_config()["processors"][-1] = structlog.dev.ConsoleRenderer(
    exception_formatter=structlog.dev.plain_traceback
)

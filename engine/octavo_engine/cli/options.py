"""Command line options for the engine's settings: one for each field of `EngineConfig`.

Names, types and defaults are the fields' own; the words that explain them are in the table here.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
import typer

from octavo_engine.config import (
    CacheSettings,
    EngineConfig,
    ModelSettings,
    ParallelSettings,
    SchedulerSettings,
)
from octavo_engine.errors import ConfigError

MODEL_PANEL, MEMORY_PANEL, SCHEDULING_PANEL = "Model", "Memory", "Scheduling"

ModelArgument = Annotated[
    str, typer.Argument(help="Folder of a Hugging Face checkpoint, or a .gguf file.")
]


class OptionText(msgspec.Struct, frozen=True):
    panel: str
    help: str
    min: float | None = None
    flags: tuple[str, ...] = ()
    """Empty: the field's name."""


TEXTS: dict[str, OptionText] = {
    "dtype": OptionText(MODEL_PANEL, "Type to compute in; auto: the checkpoint's own."),
    "quantization": OptionText(
        MODEL_PANEL, "How weights are stored; auto: as the checkpoint says."
    ),
    "max_model_len": OptionText(
        MODEL_PANEL, "Tokens of prompt and output together; default: the model's own context.", 1
    ),
    "device": OptionText(MODEL_PANEL, "Where to run."),
    "load_format": OptionText(
        MODEL_PANEL, "dummy: random weights in the place of files, for measuring."
    ),
    "tensor_parallel_size": OptionText(
        MODEL_PANEL, "GPUs that share the model, or processes on a CPU: 1 to 8.", 1
    ),
    "rank_timeout_s": OptionText(
        MODEL_PANEL,
        "Seconds after which the server ends because one of them is silent or ends no step.",
        0.1,
        ("--rank-timeout", "--rank-timeout-s"),
    ),
    "block_size": OptionText(MEMORY_PANEL, "Tokens in a page: 16 to 1024, a power of two.", 1),
    "gpu_memory_utilization": OptionText(MEMORY_PANEL, "Share of the GPU's memory to use."),
    "kv_cache_dtype": OptionText(
        MEMORY_PANEL, "Type of cached keys and values; fp8: 8 bits, twice the tokens."
    ),
    "cpu_kv_cache_gib": OptionText(MEMORY_PANEL, "Memory for pages on a CPU, GiB."),
    "prefix_caching": OptionText(MEMORY_PANEL, "Share the pages of equal beginnings of prompts."),
    "swap_space_gib": OptionText(MEMORY_PANEL, "Host memory for preempted requests, GiB."),
    "max_num_seqs": OptionText(
        SCHEDULING_PANEL, "Sequences running at once; default: 32 on a CPU, 256 on a GPU.", 1
    ),
    "max_num_batched_tokens": OptionText(
        SCHEDULING_PANEL, "Tokens of one step; default: 2048 on a CPU, 8192 on a GPU.", 1
    ),
    "target_itl_ms": OptionText(
        SCHEDULING_PANEL, "Inter-token latency to keep: prefill in a step shrinks for it.", 0.001
    ),
    "priority_ageing_s": OptionText(
        SCHEDULING_PANEL, "Seconds of waiting that are worth one level of priority.", 0
    ),
    "max_queued_requests": OptionText(
        SCHEDULING_PANEL, "Requests that may wait; more are refused with 429.", 1
    ),
    "max_queued_tokens": OptionText(
        SCHEDULING_PANEL, "Prompt tokens that may wait; more are refused with 429.", 1
    ),
}

_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "model": ModelSettings,
    "cache": CacheSettings,
    "scheduler": SchedulerSettings,
    "parallel": ParallelSettings,
}


def with_engine_options(
    command: Callable[..., None], model_argument: Any = ModelArgument
) -> Callable[..., None]:
    """A command line form of `command`: instead of its first parameter, an `EngineConfig`, it takes
    the model as an argument and each setting as an option."""
    own = list(inspect.signature(command).parameters.values())[1:]
    model = inspect.Parameter(
        "model", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=model_argument
    )

    def run(**values: Any) -> None:
        own_values = {parameter.name: values.pop(parameter.name) for parameter in own}
        try:
            config = engine_config(values.pop("model"), values)
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from error
        command(config, **own_values)

    parameters = [model, *own, *_engine_parameters()]
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    # Typer makes its options from it; the type of functions does not declare it.
    run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]  # typer reads it, functions declare none
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def engine_config(model: str, options: Mapping[str, Any]) -> EngineConfig:
    """The nested settings from options by field name."""
    sections: dict[str, dict[str, Any]] = {
        name: {
            field.name: options[field.name]
            for field in msgspec.structs.fields(kind)
            if field.name in options
        }
        for name, kind in _SECTIONS.items()
    }
    sections["model"]["path"] = model
    return msgspec.convert(sections, EngineConfig)


def _engine_parameters() -> list[inspect.Parameter]:
    return [
        _parameter(field)
        for kind in _SECTIONS.values()
        for field in msgspec.structs.fields(kind)
        if field.name != "path"
    ]


def _parameter(field: msgspec.structs.FieldInfo) -> inspect.Parameter:
    text = TEXTS[field.name]
    option = typer.Option(*text.flags, help=text.help, rich_help_panel=text.panel, min=text.min)
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=field.default,
        annotation=Annotated[field.type, option],
    )

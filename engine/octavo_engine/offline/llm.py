"""Offline use: `LLM(model).generate(prompts, params)` and `.chat(messages)`.

Call shapes are those that users of other engines know. The engine runs in this process on a thread
of its own; every option is a field of `config.EngineConfig` by its name.
"""

import itertools
import weakref
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import TracebackType
from typing import TypeVar

import msgspec

from octavo_engine.config import (
    CacheSettings,
    EngineConfig,
    ModelSettings,
    ParallelSettings,
    SchedulerSettings,
)
from octavo_engine.core.in_process import InProcessEngine, build_engine
from octavo_engine.errors import ConfigError, RequestError
from octavo_engine.messages import EngineRequest
from octavo_engine.offline.client import Job, run_jobs
from octavo_engine.offline.outputs import RequestOutput
from octavo_engine.offline.progress import GenerationProgress
from octavo_engine.offline.prompts import (
    Encoded,
    Message,
    Prompt,
    encode_conversations,
    encode_prompts,
    naming,
)
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer

S = TypeVar("S", bound=msgspec.Struct)


class LLM:
    """A model loaded for offline generation; also a context manager."""

    def __init__(self, model: str, **options: object) -> None:
        """Loads a checkpoint folder or a .gguf file. `options` are fields of the engine's settings:
        dtype, quantization, tensor_parallel_size, max_model_len, block_size, and so on.

        Raises ConfigError for a setting that cannot work, CheckpointError for a broken model.
        """
        config = config_from_options(model, options)
        self._tokenizer = load_tokenizer(config.model.path)
        self._engine = build_engine(config)
        self._ids = itertools.count()
        self._close = weakref.finalize(self, self._engine.close_blocking)

    @classmethod
    def from_parts(cls, engine: InProcessEngine, tokenizer: Tokenizer) -> "LLM":
        """Over an engine that exists already; closing the LLM closes it."""
        llm = cls.__new__(cls)
        llm._tokenizer, llm._engine, llm._ids = tokenizer, engine, itertools.count()
        llm._close = weakref.finalize(llm, engine.close_blocking)
        return llm

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the engine and gives its memory back; idempotent."""
        self._close()

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What applies where `generate` is given no parameters: the model's own defaults."""
        defaults = self._tokenizer.defaults
        return SamplingParams(
            temperature=_first(defaults.temperature, 1.0),
            top_p=_first(defaults.top_p, 1.0),
            top_k=max(defaults.top_k or 0, 0),
            min_p=_first(defaults.min_p, 0.0),
            repetition_penalty=_first(defaults.repetition_penalty, 1.0),
        )

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Outputs in the order of the prompts. A prompt is a text, a list of token ids or
        `{"prompt_token_ids": [...]}`; one set of parameters serves all, or there is one for each.

        `use_tqdm` shows the progress bar. Raises RequestError before anything runs when one of the
        prompts cannot be served, naming its index, and EngineDead when the engine stops. What goes
        wrong in one of them later is its outputs' `error`.
        """
        encoded = encode_prompts(self._tokenizer, prompts)
        return self._run(encoded, sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[RequestOutput]:
        """Like `generate` for one conversation or a list of them, by the model's chat template."""
        encoded = encode_conversations(
            self._tokenizer,
            messages,
            add_generation_prompt=add_generation_prompt,
            template_kwargs=chat_template_kwargs,
        )
        return self._run(encoded, sampling_params, use_tqdm)

    def _run(
        self,
        encoded: list[Encoded],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        is_shown: bool,
    ) -> list[RequestOutput]:
        params = self._params_for(len(encoded), sampling_params)
        jobs = [
            Job(
                text,
                EngineRequest(request_id=f"llm-{next(self._ids)}", prompt_token_ids=ids, params=p),
            )
            for (text, ids), p in zip(encoded, params, strict=True)
        ]
        for idx, job in enumerate(jobs):
            with naming(f"prompt {idx}"):
                self._engine.verify(job.request)
        order = {job.request.request_id: at for at, job in enumerate(jobs)}
        outputs: list[RequestOutput] = []
        with GenerationProgress(len(jobs), is_shown=is_shown) as progress:
            for output in run_jobs(self._engine, self._tokenizer, jobs, progress.add_tokens):
                progress.add_done()
                outputs.append(output)
        return sorted(outputs, key=lambda output: order[output.request_id])

    def _params_for(
        self, count: int, given: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        params = [given] * count if isinstance(given, SamplingParams) else list(given)
        if len(params) != count:
            raise RequestError(
                f"{len(params)} sets of sampling parameters for {count} prompts", "sampling_params"
            )
        checked: dict[int, SamplingParams] = {}
        for idx, p in enumerate(params):
            if id(p) not in checked:
                with naming(f"prompt {idx}"):
                    checked[id(p)] = self._checked(p)
        return [checked[id(p)] for p in params]

    def _checked(self, params: SamplingParams) -> SamplingParams:
        """With the types that the core relies on, and the model's end-of-sequence ids."""
        if not isinstance(params, SamplingParams):
            raise RequestError(f"{params!r:.80} is no SamplingParams", "sampling_params")
        if isinstance(params.stop, str):
            params = msgspec.structs.replace(params, stop=[params.stop])
        if params.top_k == -1:  # another name for all tokens
            params = msgspec.structs.replace(params, top_k=0)
        try:
            params = msgspec.convert(msgspec.to_builtins(params), SamplingParams)
        except (msgspec.ValidationError, TypeError) as error:
            raise RequestError(f"sampling parameters: {error}", "sampling_params") from error
        if params.eos_token_ids:
            return params
        return msgspec.structs.replace(params, eos_token_ids=self._tokenizer.eos_token_ids)


def config_from_options(model: str, options: Mapping[str, object]) -> EngineConfig:
    """Sorts options by name into the sections of the settings. Raises ConfigError for a name that
    no section has, or a value of the wrong type."""
    left = {name: value for name, value in options.items() if value is not None}
    config = EngineConfig(
        model=_section(ModelSettings, {**left, "path": model}),
        cache=_section(CacheSettings, left),
        scheduler=_section(SchedulerSettings, left),
        parallel=_section(ParallelSettings, left),
    )
    sections = (ModelSettings, CacheSettings, SchedulerSettings, ParallelSettings)
    known = {name for section in sections for name in section.__struct_fields__} - {"path"}
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"unknown option {name!r}{hint}")
    return config


def _section(kind: type[S], options: Mapping[str, object]) -> S:
    own = {name: options[name] for name in kind.__struct_fields__ if name in options}
    try:
        return msgspec.convert(own, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from error


def _first(value: float | None, neutral: float) -> float:
    return neutral if value is None else value

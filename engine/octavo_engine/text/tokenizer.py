"""Text to token ids and back, and the model's own chat template.

All methods may be called from several threads. Encoding releases the interpreter lock, so a long
prompt in a worker thread does not stop the event loop. Knows no HTTP and no sampling.
"""

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from octavo_engine.errors import CheckpointError, ConfigError, RequestError
from octavo_engine.gguf.checkpoint import GGUFCheckpoint, is_gguf, read_gguf
from octavo_engine.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from octavo_engine.text.generation_config import (
    GenerationDefaults,
    defaults_from,
    load_generation_defaults,
)
from octavo_engine.text.token_bytes import TokenBytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Tokenizer:
    """One model's tokenizer, chat template and generation defaults."""

    def __init__(
        self, hf_tokenizer: "PreTrainedTokenizerBase", defaults: GenerationDefaults
    ) -> None:
        self.hf_tokenizer = hf_tokenizer
        self.defaults = defaults
        backend = hf_tokenizer.backend_tokenizer
        # The settings in tokenizer.json are those of training; a prompt is never cut silently.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._token_bytes = TokenBytes.for_tokenizer(backend)
        self._special_ids = frozenset(hf_tokenizer.all_special_ids) | {
            token_id
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special
        }
        self.max_token_chars = max(map(len, backend.get_vocab()), default=1)
        """The longest token: a text of n characters has at least n / max_token_chars tokens."""

    @property
    def eos_token_ids(self) -> list[int]:
        """The model's end-of-sequence ids, from its generation config and its tokenizer."""
        own = self.hf_tokenizer.eos_token_id
        return sorted({*self.defaults.eos_token_ids, *([] if own is None else [own])})

    @property
    def has_chat_template(self) -> bool:
        return bool(self.hf_tokenizer.chat_template)

    @property
    def chat_template(self) -> str | None:
        """Of several named ones that for a conversation without tools."""
        known = self.hf_tokenizer.chat_template
        return known.get("default") if isinstance(known, dict) else known

    def take_chat_template(self, file: Path) -> None:
        """In place of the model's own. Raises `ConfigError` for a file that holds no template."""
        from jinja2 import TemplateSyntaxError

        try:
            self.hf_tokenizer.chat_template = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the chat template cannot be read: {file}: {error}") from error
        if not self.has_chat_template:
            raise ConfigError(f"the chat template {file} is empty")
        try:
            self.render_chat([{"role": "user", "content": "Hello"}])
        except RequestError as error:
            # What else it stumbles over may be this conversation's fault.
            if isinstance(error.__cause__, TemplateSyntaxError):
                line = error.__cause__.lineno
                message = f"the chat template {file} is none, line {line}: {error.__cause__}"
                raise ConfigError(message) from error

    def template_mentions(self, word: str) -> bool:
        """Whether the chat template's own text holds a word, such as the name of a role."""
        return word in str(self.hf_tokenizer.chat_template or "")

    def special_ids(self, names: Iterable[str]) -> dict[str, int]:
        """Those of the names that are special tokens, which as text nobody can write."""
        known = {
            str(self._backend.id_to_token(token_id)): token_id for token_id in self._special_ids
        }
        return {name: known[name] for name in names if name in known}

    def special_ids_in(self, text: str) -> frozenset[int]:
        """Special tokens that a text spells out."""
        names = {i: str(self._backend.id_to_token(i)) for i in self._special_ids}
        return frozenset(token_id for token_id, name in names.items() if name in text)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; a beginning-of-sequence token is never added before another one.

        Raises `RequestError` for a text that no file could hold: with half of a surrogate pair.
        """
        try:
            # The batch call, unlike the single one, releases the interpreter lock.
            (encoding,) = self._backend.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
        except TypeError as error:
            at = _surrogate_at(text)
            if at is None:
                raise
            message = f"the text has half of a surrogate pair, {text[at]!r}, at character {at}"
            raise RequestError(message, "prompt") from error
        ids: list[int] = encoding.ids
        bos = self.hf_tokenizer.bos_token_id
        if add_special_tokens and bos is not None and ids[:2] == [bos, bos]:
            return ids[1:]
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence as the tokenizer itself decodes it."""
        text = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return cast(str, text)

    def detokenizer(
        self,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        kept_ids: frozenset[int] = frozenset(),
    ) -> Detokenizer:
        """A fresh incremental decoder for one sequence that continues the prompt. kept_ids: special
        tokens that are not skipped."""
        skipped = self._special_ids - kept_ids if skip_special_tokens else frozenset()
        if self._token_bytes is not None:
            return ByteDetokenizer(self._token_bytes, skipped)

        def decode(ids: Sequence[int]) -> str:
            return self.decode(ids, skip_special_tokens=False)

        return WindowDetokenizer(decode, skipped, prompt_token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, special tokens by their name."""
        if self._token_bytes is not None:
            return self._token_bytes[token_id]
        return self.decode([token_id], skip_special_tokens=False).encode()

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt text for a conversation, by the model's own Jinja template.

        Raises `RequestError` when the model has no template or the template refuses the messages.
        """
        if not self.has_chat_template:
            raise RequestError("the model has no chat template; use /v1/completions", "messages")
        self._refuse_own_arguments(template_kwargs or {})
        try:
            text = self.hf_tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=[dict(tool) for tool in tools] if tools else None,
                **(template_kwargs or {}),
            )
        except Exception as error:
            # The template is the model's own program and may raise anything; what it stumbles
            # over is the client's conversation.
            message = f"the model's chat template refuses these messages: {error}"
            raise RequestError(message[:500], "messages") from error
        return cast(str, text)

    def _refuse_own_arguments(self, template_kwargs: Mapping[str, Any]) -> None:
        """Variables for the template may not replace the template itself or how it is applied."""
        own = inspect.signature(self.hf_tokenizer.apply_chat_template).parameters
        for name in template_kwargs:
            if name in own or name in ("self", "messages"):
                raise RequestError(
                    f"chat_template_kwargs: {name!r} is not a variable of the template",
                    "chat_template_kwargs",
                )


def _surrogate_at(text: str) -> int | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Loads from a checkpoint folder or a GGUF file. Raises `CheckpointError`."""
    path = Path(path)
    if is_gguf(path):
        checkpoint = read_gguf(path)
        defaults = defaults_from(checkpoint.generation_config, str(path))
        return Tokenizer(_from_gguf(checkpoint), defaults)
    return Tokenizer(_from_folder(path), load_generation_defaults(path))


def _from_folder(folder: Path) -> "PreTrainedTokenizerBase":
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is neither a folder with a checkpoint nor a .gguf file")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} holds no checkpoint: there is no config.json in it")
    from transformers import AutoTokenizer  # seconds: not before a wrong path is refused

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"{folder}: the tokenizer cannot be loaded: {reason}") from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise CheckpointError(
            f"{folder}: tokenizer class {type(tokenizer).__name__} has no tokenizer.json form"
        )
    return cast("PreTrainedTokenizerBase", tokenizer)


def _from_gguf(checkpoint: GGUFCheckpoint) -> "PreTrainedTokenizerBase":
    from tokenizers import Tokenizer as HFTokenizer
    from transformers import PreTrainedTokenizerFast

    files = checkpoint.tokenizer_files
    config = {
        key: value
        for key, value in files["tokenizer_config.json"].items()
        if key not in ("tokenizer_class", "add_bos_token", "add_prefix_space")
    }
    backend = HFTokenizer.from_str(json.dumps(files["tokenizer.json"]))
    make: Any = PreTrainedTokenizerFast  # its constructor has no types
    return cast("PreTrainedTokenizerBase", make(tokenizer_object=backend, **config))

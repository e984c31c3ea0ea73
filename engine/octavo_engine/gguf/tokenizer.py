"""The tokenizer in a GGUF header, as the contents of Hugging Face's tokenizer files.

GGUF names only the pre-tokenizer; what the name means is in the table here. An unknown name is
refused: a wrong split still gives text, only worse answers.
"""

from typing import Any

import msgspec

from octavo_engine.errors import CheckpointError
from octavo_engine.gguf.metadata import GGUFMetadata

_NORMAL_TYPE, _UNUSED_TYPE = 1, 5
_CONTROL_TYPES = (2, 3)
"""Unknown and control: special, left out of the text."""


class PreTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """How text is cut before byte pair encoding."""

    split_regex: str | None = None
    """Cuts into its matches; None: GPT-2's own split, which is part of the byte-level step."""
    single_digits: bool = False
    """Every digit is a piece of its own before anything else is cut."""
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False
    """A piece that is a token as a whole is taken without looking at the merges."""
    add_bos: bool = False
    """Whether a beginning-of-sequence token is added where the file does not say."""


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(single_digits=True),
    "llama-bpe": PreTokenizer(
        split_regex=rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_PUNCTUATION_AND_SPACE}",
        ignore_merges=True,
        add_bos=True,
    ),
    "qwen2": PreTokenizer(
        split_regex=rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_PUNCTUATION_AND_SPACE}",
        normalizer={"type": "NFC"},
    ),
}
_ALIASES = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "starcoder": "smollm",
    "refact": "smollm",
}


def tokenizer_files(metadata: GGUFMetadata) -> dict[str, dict[str, Any]]:
    """Contents of tokenizer.json and tokenizer_config.json.

    Raises `CheckpointError` for a tokenizer that is not byte-level BPE and for a pre-tokenizer
    that has no row in the table.
    """
    pre = _pre_tokenizer(metadata)
    tokens = metadata.texts("tokenizer.ggml.tokens")
    return {
        "tokenizer.json": _tokenizer_json(metadata, pre, tokens),
        "tokenizer_config.json": _tokenizer_config(metadata, pre, tokens),
    }


def _pre_tokenizer(metadata: GGUFMetadata) -> PreTokenizer:
    model = metadata.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointError(
            f"{metadata.path}: tokenizer model {model!r} is not supported in GGUF, only 'gpt2'"
        )
    name = metadata.text("tokenizer.ggml.pre", "default")
    pre = PRE_TOKENIZERS.get(_ALIASES.get(name, name))
    if pre is None:
        known = ", ".join(sorted([*PRE_TOKENIZERS, *_ALIASES]))
        raise CheckpointError(
            f"{metadata.path}: pre-tokenizer {name!r} is not known (known: {known})"
        )
    return pre


def _tokenizer_json(metadata: GGUFMetadata, pre: PreTokenizer, tokens: list[str]) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(metadata, tokens),
        "normalizer": pre.normalizer,
        "pre_tokenizer": _pre_tokenizer_json(pre),
        "post_processor": _post_processor_json(metadata, pre, tokens),
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.ignore_merges,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [_merge(merge) for merge in metadata.texts("tokenizer.ggml.merges")],
        },
    }


def _merge(merge: str) -> list[str]:
    # The separating space is never first: a token may not be empty.
    left, _, right = merge.partition(" ")
    return [left, right]


def _added_tokens(metadata: GGUFMetadata, tokens: list[str]) -> list[dict[str, Any]]:
    types = metadata.numbers("tokenizer.ggml.token_type")
    return [
        {
            "id": token_id,
            "content": tokens[token_id],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind in _CONTROL_TYPES,
        }
        for token_id, kind in enumerate(types)
        if kind not in (_NORMAL_TYPE, _UNUSED_TYPE)
    ]


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _pre_tokenizer_json(pre: PreTokenizer) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if pre.single_digits:
        steps.append({"type": "Digits", "individual_digits": True})
    if pre.split_regex is not None:
        steps.append(
            {
                "type": "Split",
                "pattern": {"Regex": pre.split_regex},
                "behavior": "Isolated",
                "invert": False,
            }
        )
    steps.append(_byte_level(use_regex=pre.split_regex is None))
    return {"type": "Sequence", "pretokenizers": steps}


def _post_processor_json(
    metadata: GGUFMetadata, pre: PreTokenizer, tokens: list[str]
) -> dict[str, Any] | None:
    if not metadata.flag("tokenizer.ggml.add_bos_token", pre.add_bos):
        return None
    bos_id = metadata.integer("tokenizer.ggml.bos_token_id")
    bos = tokens[bos_id]
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            first,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }


def _tokenizer_config(
    metadata: GGUFMetadata, pre: PreTokenizer, tokens: list[str]
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "add_bos_token": metadata.flag("tokenizer.ggml.add_bos_token", pre.add_bos),
        "model_max_length": metadata.integer(metadata.arch_key("context_length")),
    }
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    for name, key in names.items():
        if metadata.has(f"tokenizer.ggml.{key}_token_id"):
            config[f"{name}_token"] = tokens[metadata.integer(f"tokenizer.ggml.{key}_token_id")]
    if metadata.has("tokenizer.chat_template"):
        config["chat_template"] = metadata.text("tokenizer.chat_template")
    return config

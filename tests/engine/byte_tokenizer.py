"""A tokenizer whose ids are bytes, with three special tokens and a template; made in memory."""

from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as HFTokenizer
from transformers import PreTrainedTokenizerFast

from octavo_engine.text.generation_config import GenerationDefaults
from octavo_engine.text.token_bytes import byte_level_alphabet
from octavo_engine.text.tokenizer import Tokenizer

EOS_ID, START_ID, END_ID = 256, 257, 258
VOCAB_SIZE = 259

CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}:{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant:{% endif %}"
)


def make_hf_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    vocab = byte_level_alphabet()
    backend = HFTokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(text, special=True) for text in ("<|eos|>", "<|start|>", "<|end|>")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|eos|>", chat_template=chat_template
    )


def make_tokenizer(
    defaults: GenerationDefaults | None = None, chat_template: str | None = CHAT_TEMPLATE
) -> Tokenizer:
    return Tokenizer(make_hf_tokenizer(chat_template), defaults or GenerationDefaults())


def make_tokenizer_with_bos(chat_template: str = CHAT_TEMPLATE) -> Tokenizer:
    """Begins each text with <|start|>."""
    hf_tokenizer = make_hf_tokenizer(chat_template)
    hf_tokenizer.bos_token = "<|start|>"
    hf_tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", START_ID)]
    )
    return Tokenizer(hf_tokenizer, GenerationDefaults())


def ids_of(text: str) -> list[int]:
    return list(text.encode())

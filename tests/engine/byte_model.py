"""A tiny random model over the byte tokenizer, saved as a checkpoint: text of a real engine."""

from pathlib import Path

from tests.engine.byte_tokenizer import EOS_ID, make_hf_tokenizer
from tests.engine.tiny_models import save_tiny

VOCAB_SIZE = 288
"""Wider than the tokenizer's, as real models have it."""


def save_byte_model(folder: Path) -> Path:
    save_tiny("llama", folder, vocab_size=VOCAB_SIZE, eos_token_id=EOS_ID, bos_token_id=None)
    make_hf_tokenizer().save_pretrained(folder)
    return folder

"""Incremental decoding against decoding everything at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.byte_tokenizer import END_ID, VOCAB_SIZE, make_tokenizer
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from octavo_engine.text.detokenizer import WindowDetokenizer
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer

TOKENIZER = make_tokenizer()


def decode_in_steps(
    tokenizer: Tokenizer, ids: list[int], *, skip_special_tokens: bool = True
) -> list[str]:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@given(st.text())
def test_a_character_comes_whole_or_not_at_all(text: str) -> None:
    pieces = decode_in_steps(TOKENIZER, TOKENIZER.encode(text))
    assert "".join(pieces) == text


@given(st.lists(st.integers(0, VOCAB_SIZE - 1)), st.booleans())
def test_any_ids_give_the_text_of_decoding_them_at_once(ids: list[int], skip: bool) -> None:
    whole = TOKENIZER.decode(ids, skip_special_tokens=skip)
    assert "".join(decode_in_steps(TOKENIZER, ids, skip_special_tokens=skip)) == whole


def test_half_a_character_at_the_end_is_flushed_as_a_replacement() -> None:
    assert decode_in_steps(TOKENIZER, [ord("a"), 0xE2, 0x82]) == ["a", "", "", "\ufffd"]


def test_bytes_that_cannot_go_on_are_given_out_at_once() -> None:
    assert decode_in_steps(TOKENIZER, [0xE2, ord("a")]) == ["", "\ufffda", ""]


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    ids = [ord("a"), END_ID]
    assert "".join(decode_in_steps(TOKENIZER, ids)) == "a"
    assert "".join(decode_in_steps(TOKENIZER, ids, skip_special_tokens=False)) == "a<|end|>"


def test_ids_outside_the_tokenizer_have_no_text() -> None:
    assert "".join(decode_in_steps(TOKENIZER, [ord("a"), 100_000])) == "a"


@given(st.text(max_size=60))
def test_real_tokenizer_gives_the_same_text_in_steps(
    smollm2_tokenizer: Tokenizer, text: str
) -> None:
    ids = smollm2_tokenizer.encode(text)
    assert "".join(decode_in_steps(smollm2_tokenizer, ids)) == smollm2_tokenizer.decode(ids)


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2_path) -> Tokenizer:  # type: ignore[no-untyped-def]  # a fixture's argument
    return load_tokenizer(smollm2_path)


def make_sentencepiece_like() -> HFTokenizer:
    """Byte fallback and marked spaces, as Llama 2 has them."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁a", "▁b", "b", "▁"]
    backend = HFTokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[]))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return backend


def test_byte_fallback_tokens_join_to_characters() -> None:
    backend = make_sentencepiece_like()
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), TOKENIZER.defaults)
    ids = [257, *(1 + byte for byte in "é".encode()), 259]
    assert decode_in_steps(tokenizer, ids) == [" a", "", "é", "b", ""]


def test_other_decoders_see_the_tokens_before() -> None:
    """WordPiece joins a piece to the word before it; alone it would keep its mark."""
    vocab = {"[UNK]": 0, "play": 1, "##ing": 2, "now": 3}
    backend = HFTokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), TOKENIZER.defaults)
    detokenizer = tokenizer.detokenizer([1])
    assert isinstance(detokenizer, WindowDetokenizer)
    assert [detokenizer.push(2), detokenizer.push(3), detokenizer.flush()] == ["ing", " now", ""]

"""Encoding, chat templates and the checkpoint's own defaults."""

import json
from pathlib import Path

import pytest
from tests.engine.byte_tokenizer import (
    EOS_ID,
    START_ID,
    ids_of,
    make_hf_tokenizer,
    make_tokenizer,
    make_tokenizer_with_bos,
)

from octavo_engine.errors import CheckpointError, ConfigError, RequestError
from octavo_engine.text.generation_config import GenerationDefaults, load_generation_defaults
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer

HELLO = [{"role": "user", "content": "hi"}]


def test_beginning_of_sequence_is_added_to_plain_text() -> None:
    assert make_tokenizer_with_bos().encode("a") == [START_ID, ord("a")]


def test_beginning_of_sequence_is_not_added_twice() -> None:
    assert make_tokenizer_with_bos().encode("<|start|>a") == [START_ID, ord("a")]


def test_template_writes_the_conversation_and_asks_for_an_answer() -> None:
    text = make_tokenizer().render_chat(HELLO)
    assert text == "<|start|>user:hi<|end|><|start|>assistant:"


def test_final_message_can_be_continued() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Well"}]
    text = make_tokenizer().render_chat(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert text.endswith("assistant:Well")


def test_model_without_a_template_refuses_chat_by_name() -> None:
    with pytest.raises(RequestError, match="no chat template") as caught:
        make_tokenizer(chat_template=None).render_chat(HELLO)
    assert caught.value.param == "messages"


def test_what_the_template_refuses_is_the_clients_error() -> None:
    tokenizer = make_tokenizer(chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="roles must alternate"):
        tokenizer.render_chat(HELLO)


def test_error_of_any_kind_in_the_template_is_the_clients_error() -> None:
    tokenizer = make_tokenizer(chat_template="{{ 1 // (messages | length - 1) }}")
    with pytest.raises(RequestError, match="refuses these messages"):
        tokenizer.render_chat(HELLO)


def test_template_variables_reach_the_template() -> None:
    tokenizer = make_tokenizer(chat_template="{{ mood }}")
    assert tokenizer.render_chat(HELLO, template_kwargs={"mood": "calm"}) == "calm"


def test_a_template_of_a_file_takes_the_place_of_the_models_own(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    tokenizer = make_tokenizer()
    tokenizer.take_chat_template(file)
    assert tokenizer.render_chat(HELLO) == "<hi>"


def test_a_template_that_refuses_a_conversation_is_still_one(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ raise_exception('a system message comes first') }}")
    make_tokenizer().take_chat_template(file)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{% if messages %}\n{{ messages", "is none, line 2: "),
        ("", "is empty"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_holds_no_template_is_refused(
    tmp_path: Path, content: str | None, sentence: str
) -> None:
    file = tmp_path / "chat.jinja"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=f"chat template .*{sentence}") as caught:
        make_tokenizer().take_chat_template(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "tools", "messages"])
def test_client_cannot_replace_the_template(name: str) -> None:
    with pytest.raises(RequestError, match=name):
        make_tokenizer().render_chat(HELLO, template_kwargs={name: "x"})


def test_truncation_in_the_file_is_ignored() -> None:
    hf_tokenizer = make_hf_tokenizer()
    hf_tokenizer.backend_tokenizer.enable_truncation(3)
    assert len(Tokenizer(hf_tokenizer, GenerationDefaults()).encode("abcdef")) == 6


def test_end_ids_come_from_the_tokenizer_and_the_generation_config() -> None:
    assert make_tokenizer(GenerationDefaults(eos_token_ids=(7,))).eos_token_ids == [7, EOS_ID]


def test_defaults_tell_unset_from_set(tmp_path: Path) -> None:
    content = {"temperature": 0.0, "top_k": None, "eos_token_id": [1, 2], "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    defaults = load_generation_defaults(tmp_path)
    assert defaults == GenerationDefaults(temperature=0.0, eos_token_ids=(1, 2))


def test_end_id_of_the_model_config_is_used_when_there_is_no_other(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    assert load_generation_defaults(tmp_path).eos_token_ids == (9,)


def test_broken_generation_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": "hot"}')
    with pytest.raises(CheckpointError, match=r"generation_config\.json.*temperature"):
        load_generation_defaults(tmp_path)


def test_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        load_tokenizer(tmp_path / "nowhere")


def test_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        load_tokenizer(tmp_path)


def test_real_folder_encodes_every_digit_alone(smollm2_path: Path) -> None:
    tokenizer = load_tokenizer(smollm2_path)
    pieces = [tokenizer.token_bytes(i) for i in tokenizer.encode("in 2024")]
    assert pieces == [b"in", b" ", b"2", b"0", b"2", b"4"]
    assert ids_of("a") != tokenizer.encode("a")

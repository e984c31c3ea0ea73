"""GGUF files against the weights and texts that they were made from."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from tests.engine.gguf_files import EOS_ID, HEAD_DIM, TOKENS, hf_weights, write_gguf
from transformers import AutoConfig, AutoModelForCausalLM

from octavo_engine.errors import CheckpointError
from octavo_engine.gguf.checkpoint import read_gguf
from octavo_engine.gguf.folder import write_folder
from octavo_engine.gguf.rope import llama3_factors
from octavo_engine.text.tokenizer import load_tokenizer


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", hf_weights())


def test_tensors_come_back_under_their_names_and_in_their_row_order(gguf_path: Path) -> None:
    expected = hf_weights()
    tensors = dict(read_gguf(gguf_path).tensors())
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_tensor_types_are_read_to_the_bit(tmp_path: Path, kind: str) -> None:
    tensor_type = GGMLQuantizationType[kind]
    weights = hf_weights(1)
    path = write_gguf(tmp_path / "q.gguf", weights, kind=tensor_type, num_layers=1)
    name = "model.layers.0.mlp.up_proj.weight"
    expected = dequantize(quantize(weights[name].numpy(), tensor_type), tensor_type)
    read = dict(read_gguf(path).tensors())[name]
    assert np.array_equal(read.float().numpy(), expected.reshape(weights[name].shape))
    assert read.dtype == {"F16": torch.float16, "BF16": torch.bfloat16}.get(kind, torch.float32)


def test_architecture_without_permuted_rows_is_left_alone(tmp_path: Path) -> None:
    expected = hf_weights()
    tensors = dict(read_gguf(write_gguf(tmp_path / "q.gguf", expected, arch="qwen2")).tensors())
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_config_is_one_that_transformers_loads(gguf_path: Path, tmp_path: Path) -> None:
    write_folder(read_gguf(gguf_path), tmp_path / "hf", "float32")
    config = AutoConfig.from_pretrained(tmp_path / "hf")
    assert (config.model_type, config.num_key_value_heads, config.head_dim) == ("llama", 2, 16)
    assert (config.rms_norm_eps, config.tie_word_embeddings) == (1e-5, True)
    assert config.eos_token_id == EOS_ID
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    state = model.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in hf_weights().items())


def test_separate_output_weights_are_not_tied(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "u.gguf", hf_weights(tied=False))
    checkpoint = read_gguf(path)
    assert checkpoint.config["tie_word_embeddings"] is False
    assert "lm_head.weight" in dict(checkpoint.tensors())


def test_llama3_scaling_is_recovered_from_its_factors(tmp_path: Path) -> None:
    factors = llama3_factors(10000.0, HEAD_DIM, 32.0).astype(np.float32)
    path = write_gguf(
        tmp_path / "l3.gguf", hf_weights(), extra_tensors={"rope_freqs.weight": factors}
    )
    rope = read_gguf(path).config["rope_parameters"]
    assert (rope["rope_type"], rope["factor"]) == ("llama3", 32.0)


def test_llama3_factors_are_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(
        hidden_size=512, num_attention_heads=4, head_dim=128, rope_parameters=parameters
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** -(np.arange(0, 128, 2) / 128)
    assert np.allclose(plain / llama3_factors(500000.0, 128, 8.0), scaled.numpy(), rtol=1e-5)


def test_other_rope_factors_are_refused(tmp_path: Path) -> None:
    factors = np.linspace(1, 9, HEAD_DIM // 2, dtype=np.float32)
    path = write_gguf(
        tmp_path / "l.gguf", hf_weights(), extra_tensors={"rope_freqs.weight": factors}
    )
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        _ = read_gguf(path).config


def test_yarn_scaling_is_read(tmp_path: Path) -> None:
    extra = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 64,
    }
    rope = read_gguf(write_gguf(tmp_path / "y.gguf", hf_weights(), extra=extra)).config[
        "rope_parameters"
    ]
    assert rope == {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }


def test_tokenizer_merges_and_keeps_special_tokens_whole(gguf_path: Path) -> None:
    tokenizer = load_tokenizer(gguf_path)
    pieces = [TOKENS[i] for i in tokenizer.encode("ab a<|eos|>")]
    assert pieces == ["ab", "Ġa", "<|eos|>"]
    assert tokenizer.eos_token_ids == [EOS_ID]


def test_chat_template_of_the_file_is_used(gguf_path: Path) -> None:
    text = load_tokenizer(gguf_path).render_chat([{"role": "user", "content": "hi"}])
    assert text == "<|im|>hi"


@pytest.mark.parametrize(
    ("pre", "text", "splits"),
    [
        ("smollm", "a 2024", ["a", " ", "2", "0", "2", "4"]),
        ("gpt-2", "a 2024 I'll", ["a", " 2024", " I", "'ll"]),
        ("llama-bpe", "a 20245 I'LL\n\n b", ["a", " ", "202", "45", " I", "'LL", "\n\n", " b"]),
        ("qwen2", "a 24 (x)\n  b", ["a", " ", "2", "4", " (", "x", ")\n", " ", " b"]),
    ],
)
def test_pre_tokenizer_cuts_as_its_name_says(
    tmp_path: Path, pre: str, text: str, splits: list[str]
) -> None:
    path = write_gguf(tmp_path / "p.gguf", hf_weights(1), num_layers=1, pre=pre)
    backend = load_tokenizer(path).hf_tokenizer.backend_tokenizer
    offsets = [span for _, span in backend.pre_tokenizer.pre_tokenize_str(text)]
    assert [text[start:end] for start, end in offsets] == splits


def test_beginning_token_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.add_bos_token": True}
    path = write_gguf(tmp_path / "b.gguf", hf_weights(1), num_layers=1, extra=extra)
    assert load_tokenizer(path).encode("ab")[0] == EOS_ID + 1


def test_unknown_pre_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "p.gguf", hf_weights(1), num_layers=1, pre="martian")
    with pytest.raises(CheckpointError, match="pre-tokenizer 'martian' is not known"):
        load_tokenizer(path)


def test_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "p.gguf", hf_weights(1), num_layers=1, arch="mamba")
    with pytest.raises(CheckpointError, match="'mamba' is not supported, only llama, qwen2"):
        read_gguf(path)


def test_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "p.gguf", hf_weights(), extra={"llama.expert_count": 8})
    with pytest.raises(CheckpointError, match="mixture of experts"):
        read_gguf(path)


def test_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    extra = {"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}
    path = write_gguf(tmp_path / "p.gguf", hf_weights(), extra_tensors=extra)
    with pytest.raises(CheckpointError, match=r"'blk\.0\.attn_sinks\.weight' has no place"):
        list(read_gguf(path).tensors())


@pytest.mark.parametrize("num_bytes", [0, 3, 100, 4000, -1000])
def test_cut_file_is_refused(gguf_path: Path, num_bytes: int) -> None:
    content = gguf_path.read_bytes()
    gguf_path.write_bytes(content[:num_bytes])
    with pytest.raises(CheckpointError, match=r"tiny\.gguf"):
        list(read_gguf(gguf_path).tensors())


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        read_gguf(tmp_path / "nowhere.gguf")


def test_real_file_and_folder_tokenise_alike(smollm2_gguf_path: Path, smollm2_path: Path) -> None:
    text = "Café in 2024:\n\n  def f(x): return x+10 🎉"
    from_file, from_folder = load_tokenizer(smollm2_gguf_path), load_tokenizer(smollm2_path)
    assert from_file.encode(text) == from_folder.encode(text)
    messages = [{"role": "user", "content": text}]
    assert from_file.render_chat(messages) == from_folder.render_chat(messages)

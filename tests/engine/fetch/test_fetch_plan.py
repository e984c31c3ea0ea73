"""What a model takes, told from its config; and what is said of one that cannot fit."""

import json

import pytest

from octavo_engine.cli.options import engine_config
from octavo_engine.fetch.errors import DoesNotFit
from octavo_engine.fetch.judge import judge
from octavo_engine.fetch.manifest import FileRecord, Manifest
from octavo_engine.fetch.plan import read_shape

GIB = 2**30
LLAMA_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def told(tmp_path):
    """The plan of a model of so many GiB under so much memory and these settings."""

    def of(memory_gib=None, weights_gib=16, raw=None, **settings):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B | (raw or {})))
        size_bytes = int(weights_gib * GIB)
        record = FileRecord("model.safetensors", size_bytes, "")
        settings = {"device": "cuda", **settings}
        config = engine_config("hf://org/name", settings)
        return judge(tmp_path, Manifest("", "", (record,)), config, memory_gib)

    return of


def test_pages_take_what_weights_leave(told):
    plan = told(memory_gib=80, gpu_memory_utilization=0.9)

    assert plan.weights_bytes == 16 * GIB
    assert plan.kv_token_bytes == 2 * 32 * 8 * 128 * 2
    assert plan.kv_tokens == (int(72 * GIB) - 760 * 2**20 - 16 * GIB) // plan.kv_token_bytes
    assert plan.max_model_len == plan.context_len == 131072


def test_ranks_share_weights_and_heads(told):
    one, four = told(memory_gib=80), told(memory_gib=80, tensor_parallel_size=4)

    assert four.weights_bytes == one.weights_bytes // 4
    assert four.kv_token_bytes == one.kv_token_bytes // 4


def test_without_a_known_memory_only_the_models_own_numbers_are_told(told):
    plan = told(weights_gib=1000)

    assert plan.weights_bytes == 1000 * GIB
    assert (plan.kv_tokens, plan.max_model_len) == (None, None)


def test_the_context_is_what_the_pages_hold(told):
    plan = told(memory_gib=24)

    assert 16 < plan.max_model_len == plan.kv_tokens < plan.context_len


def test_weights_beyond_the_memory_do_not_fit(told):
    with pytest.raises(DoesNotFit) as caught:
        told(memory_gib=24, weights_gib=60)
    sentence = str(caught.value)

    assert "weights of 60.0 GiB in 1 rank(s) with 21.3 GiB" in sentence
    assert "tensorParallelSize 4 or a checkpoint of fewer bits a weight would fit" in sentence


def test_a_context_beyond_the_pages_does_not_fit_and_one_that_does_is_named(told):
    held = told(memory_gib=24).kv_tokens
    with pytest.raises(DoesNotFit, match=f"hold {held} tokens, 131072 are asked") as caught:
        told(memory_gib=24, max_model_len=131072)

    assert f"maxModelLen {held} or tensorParallelSize 2" in str(caught.value)
    assert told(memory_gib=24, max_model_len=held).max_model_len == held


def test_what_the_remedy_names_does_fit(told):
    with pytest.raises(DoesNotFit):
        told(memory_gib=24, weights_gib=60)

    assert told(memory_gib=24, weights_gib=60, tensor_parallel_size=4).kv_tokens > 0


def test_on_a_cpu_pages_and_weights_share_the_limit(told):
    cpu = {"device": "cpu", "cpu_kv_cache_gib": 4.0}
    with pytest.raises(DoesNotFit, match=r"limit of 18\.0 GiB and 4\.0 GiB of pages: too much"):
        told(memory_gib=18, **cpu)

    assert told(memory_gib=24, **cpu).kv_tokens == 4 * GIB // (2 * 32 * 8 * 128 * 2)


def test_weights_quantized_at_load_count_as_what_they_become(told):
    with pytest.raises(DoesNotFit):
        told(memory_gib=14)

    assert told(memory_gib=14, quantization="fp8").weights_bytes == 8 * GIB


def test_pages_of_8_bits_hold_twice_the_tokens(told):
    plain, small = told(memory_gib=80), told(memory_gib=80, kv_cache_dtype="fp8")

    assert small.kv_token_bytes == plain.kv_token_bytes // 2
    assert small.kv_tokens // 2 == plain.kv_tokens


def test_pages_of_8_bits_are_named_where_they_would_do(told):
    held = told(memory_gib=24).kv_tokens
    with pytest.raises(DoesNotFit, match=r"; kvCacheDtype fp8 or maxModelLen"):
        told(memory_gib=24, max_model_len=2 * held)
    assert told(memory_gib=24, max_model_len=2 * held, kv_cache_dtype="fp8")

    with pytest.raises(DoesNotFit) as caught:
        told(memory_gib=24, max_model_len=2 * held + 1)
    assert "fp8" not in str(caught.value)


def test_layers_with_windows_are_not_judged_by_their_tokens(told):
    plan = told(memory_gib=80, max_model_len=131072, raw={"sliding_window": 1024})

    assert plan.kv_tokens is None
    with pytest.raises(DoesNotFit):
        told(memory_gib=24, weights_gib=60, raw={"sliding_window": 1024})


def test_a_config_in_other_words_is_not_judged():
    assert read_shape({"n_layer": 12}) is None
    assert read_shape({}) is None


def test_the_language_part_of_a_larger_config_counts():
    assert read_shape({"text_config": LLAMA_8B}) == read_shape(LLAMA_8B)

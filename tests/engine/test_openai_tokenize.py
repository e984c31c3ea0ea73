"""/tokenize and /detokenize over HTTP."""

import pytest
from tests.engine.byte_tokenizer import CHAT_TEMPLATE, END_ID, START_ID, ids_of, make_tokenizer
from tests.engine.echo_engine import EchoEngine, always
from tests.engine.server_client import client_of, make_state

MESSAGES = [{"role": "user", "content": "hé"}]


@pytest.fixture
def state():
    return make_state(EchoEngine(always("x")))


async def test_a_prompt_becomes_the_ids_of_a_completion(state):
    async with client_of(state) as client:
        answer = await client.ok("/tokenize", {"prompt": "hé", "return_token_strs": True})
    assert answer == {
        "count": 3,
        "max_model_len": 200,
        "tokens": [104, 195, 169],
        "token_strs": ["h", "bytes:\\xc3", "bytes:\\xa9"],
    }


async def test_a_conversation_becomes_the_ids_of_a_chat(state):
    async with client_of(state) as client:
        answer = await client.ok("/tokenize", {"model": "echo", "messages": MESSAGES})
        bare = {"messages": MESSAGES, "add_generation_prompt": False}
        shorter = await client.ok("/tokenize", bare)
        text = await client.ok("/detokenize", {"tokens": answer["tokens"]})
    turns = [START_ID, *ids_of("user:hé"), END_ID, START_ID, *ids_of("assistant:")]
    assert answer["tokens"] == turns
    assert answer["tokens"][: shorter["count"]] == shorter["tokens"]
    assert shorter["count"] < answer["count"]
    assert text == {"prompt": "<|start|>user:hé<|end|><|start|>assistant:"}


async def test_a_harness_can_use_it_as_its_tokenizer(state):
    async with client_of(state) as client:
        info = (await client.http.get("/tokenizer_info")).json()
        eos = await client.ok("/tokenize", {"prompt": info["eos_token"]})
    assert eos["tokens"] == make_tokenizer().eos_token_ids
    assert info["chat_template"] == CHAT_TEMPLATE
    assert (info["bos_token"], info["model_max_length"]) == (None, eos["max_model_len"])


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, 400),
        ("/tokenize", {"prompt": "a", "colour": 1}, 400),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, 400),
        ("/tokenize", {"prompt": "a", "continue_final_message": False}, 400),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {}}, 400),
        ("/tokenize", {"prompt": "a", "tools": []}, 400),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404),
        ("/detokenize", {"tokens": [259]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": "abc"}, 400),
    ],
)
async def test_wrong_requests_are_refused(state, path, body, status):
    async with client_of(state) as client:
        error = await client.refused(path, body, status)
    wrong = [name for name in body if name not in ("prompt", "messages")]
    assert (error["param"] or "").partition(".")[0] == "".join(wrong)

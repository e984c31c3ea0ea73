"""The door of the engine on its own thread: what is refused, and how much may wait."""

import threading

import msgspec
import pytest
from tests.engine.core_driver import greedy, prompt_of
from tests.engine.fake_runner import VOCAB_SIZE, FakeRunner
from tests.engine.in_process_case import engine, read, request

from octavo_engine.errors import PromptTooLong, QueueFull, RequestError
from octavo_engine.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("prompt", "params", "error", "words"),
    [
        ([], greedy(), RequestError, ["empty"]),
        ([3, VOCAB_SIZE], greedy(), RequestError, [str(VOCAB_SIZE)]),
        ([-1], greedy(), RequestError, ["-1"]),
        (prompt_of(1200), greedy(), PromptTooLong, ["1200", "1008"]),
        (prompt_of(1000), greedy(10), RequestError, ["1000", "10", "1010", "1008"]),
        ([3], greedy(2, min_tokens=3), RequestError, ["min_tokens", "3", "2"]),
        ([3], greedy(stop_token_ids=[-5]), RequestError, ["stop_token_ids", "-5"]),
        ([3], greedy(logit_bias={500: 1.0}), RequestError, ["logit_bias", "500"]),
        ([3], SamplingParams(top_p=0.0), RequestError, ["top_p", "0.0"]),
        ([3], SamplingParams(temperature=float("nan")), RequestError, ["temperature", "nan"]),
        ([3], SamplingParams(n=0), RequestError, ["n must be", "0"]),
    ],
)
async def test_the_door_names_what_is_wrong(prompt, params, error, words):
    core = engine(FakeRunner())
    with pytest.raises(error) as caught:
        core.submit(request("a", prompt, params))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert core.stats().num_waiting == 0
    await core.close()


async def test_a_priority_beyond_all_reason_is_refused():
    core = engine(FakeRunner())
    with pytest.raises(RequestError, match="priority"):
        core.submit(msgspec.structs.replace(request("a"), priority=10**400))
    await core.close()


async def test_an_id_in_use_is_refused():
    core = engine(FakeRunner(gate=(gate := threading.Event())))
    stream = core.submit(request("a"))
    with pytest.raises(RequestError, match="'a'"):
        core.submit(request("a"))
    gate.set()
    await read(stream)
    await read(core.submit(request("a")))
    await core.close()


async def test_a_full_queue_refuses():
    gate = threading.Event()
    core = engine(FakeRunner(gate=gate, max_num_seqs=1), max_queued_requests=3)
    for i in range(3):
        core.submit(request(str(i)))
    with pytest.raises(QueueFull):  # noqa: PT012 - at most one of the three has left the queue
        for i in range(3, 5):
            core.submit(request(str(i)))
    gate.set()
    await core.close()


async def test_waiting_prompt_tokens_are_bounded_but_one_prompt_alone_is_let_in():
    gate = threading.Event()
    core = engine(FakeRunner(gate=gate, num_blocks=100), max_queued_tokens=50)
    core.submit(request("long", prompt_of(200)))
    with pytest.raises(QueueFull, match="200 tokens are waiting already; 10 more"):
        core.submit(request("short"))
    gate.set()
    await core.close()


async def test_prompts_that_have_been_answered_make_room_for_others():
    core = engine(FakeRunner(num_blocks=100), max_queued_tokens=50)
    for number in range(5):
        stream = core.submit(request(str(number), prompt_of(40, number), greedy(500)))
        await anext(stream)
    await core.close()

"""Reading the pods' load over HTTP: fresh, stale and absent are told apart, and none is zero."""

import asyncio
from types import SimpleNamespace

import pytest
import structlog
from aiohttp import web

from octavo_operator import samples
from octavo_operator.autoscale import ReplicaLoad
from octavo_operator.cache import ObjectCache
from octavo_operator.config import SampleSettings
from octavo_operator.kinds import INFERENCE_SERVICE, POD
from octavo_operator.metrics import Metrics
from octavo_operator.samples import SampleError, SampleReader, ServiceLoad

KEY = ("team", "chat")
LABELS = '{model_name="chat",engine="0"}'
TEXT = f"""\
# HELP vllm:num_requests_waiting Requests that wait for room in the engine.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{LABELS} 3.0
vllm:num_requests_running{LABELS} 2.0
vllm:kv_cache_usage_perc{LABELS} 0.5
vllm:e2e_request_latency_seconds_bucket{{le="+Inf"}} 7
octavo:max_num_seqs{LABELS} 8.0
"""
LOAD = ReplicaLoad(num_pending=3, num_running=2, kv_use=0.5, max_running=8)


def test_a_pods_metrics_become_its_load():
    assert samples.parse(TEXT) == LOAD


def test_a_load_of_zero_is_read_as_zero():
    text = TEXT.replace(" 3.0", " 0.0")
    assert samples.parse(text).num_pending == 0


@pytest.mark.parametrize("name", [samples.PENDING, samples.RUNNING, samples.KV_USE, "octavo:max"])
def test_a_metric_that_is_missing_is_named_and_not_taken_for_zero(name):
    lines = [line for line in TEXT.splitlines() if not line.startswith(name)]

    with pytest.raises(SampleError, match=f"{name}.* is missing"):
        samples.parse("\n".join(lines))


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "many"])
def test_a_number_of_requests_that_cannot_be_is_refused(value):
    with pytest.raises(SampleError):
        samples.parse(TEXT.replace(" 3.0", f" {value}"))


def test_engines_of_one_pod_are_added_up():
    second = TEXT.replace('engine="0"', 'engine="1"')

    assert samples.parse(TEXT + second) == ReplicaLoad(6, 4, 0.5, 16)


STARTED = """\
octavo:startup_seconds{model_name="chat",engine="0",stage="weights"} 1.25
octavo:startup_seconds{model_name="chat",engine="0",stage="graphs"} 0.5
octavo:startup_seconds{model_name="chat",engine="0",stage="total"} 1.9
"""


def test_the_stages_of_an_engines_start_are_read_in_milliseconds():
    assert samples.parse_stages(TEXT + STARTED) == {"weights": 1250, "graphs": 500}


def test_an_engine_may_tell_no_stages():
    assert samples.parse_stages(TEXT) == {}


def test_stages_that_are_no_times_are_refused():
    with pytest.raises(SampleError, match="octavo:startup_seconds is "):
        samples.parse_stages(STARTED.replace("1.25", "NaN"))


@pytest.fixture
def clock():
    return SimpleNamespace(now_s=1000.0)


@pytest.fixture
def cache(service_body):
    made = ObjectCache()
    made.put(INFERENCE_SERVICE, service_body())
    return made


@pytest.fixture
def reader(cache, clock):
    settings = SampleSettings(interval_seconds=5, timeout_seconds=0.5, concurrency=2)
    return SampleReader(cache, Metrics(), settings, lambda: clock.now_s)


@pytest.fixture
def add_pod(cache, pod_body):
    def add(name, address="127.0.0.1", *, is_ready=True, **metadata):
        ready = {"type": "Ready", "status": "True" if is_ready else "False"}
        metadata = {"uid": f"uid-{name}", **metadata}
        body = pod_body(name, metadata, phase="Running", conditions=[ready], podIP=address)
        cache.put(POD, body)

    return add


class Engine:
    """Answers /metrics as an engine would, or as a test wants it to."""

    def __init__(self):
        self.text = TEXT
        self.status = 200
        self.delay_s = 0.0
        self.num_open = self.most_open = 0

    async def metrics(self, _):
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            await asyncio.sleep(self.delay_s)
        finally:
            self.num_open -= 1
        return web.Response(text=self.text, status=self.status)


@pytest.fixture
async def engine(monkeypatch):
    made = Engine()
    application = web.Application()
    application.router.add_get("/metrics", made.metrics)
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(samples, "ENGINE_PORT", runner.addresses[0][1])
    yield made
    await runner.cleanup()


async def read(reader, cache):
    async with reader.session() as session:
        await reader.once(session)
    return reader.load(cache.snapshot(KEY))


async def test_ready_pods_are_read(reader, cache, engine, add_pod):
    add_pod("a")
    add_pod("b")

    assert await read(reader, cache) == ServiceLoad((LOAD, LOAD), 0)


async def test_pods_that_get_no_requests_are_not_asked(reader, cache, engine, add_pod):
    add_pod("starting", is_ready=False)
    add_pod("leaving", deletionTimestamp="2026-01-01T00:00:00Z")

    assert await read(reader, cache) == ServiceLoad()
    assert engine.most_open == 0


@pytest.mark.parametrize(
    "wrong",
    [{"status": 503}, {"text": "nothing here"}, {"delay_s": 5.0}],
    ids=["error", "no metrics", "no answer in time"],
)
async def test_a_pod_that_cannot_be_read_is_counted(reader, cache, engine, add_pod, wrong):
    add_pod("a")
    vars(engine).update(wrong)

    assert await read(reader, cache) == ServiceLoad((), 1)


async def test_a_pod_without_an_address_is_counted(reader, cache, engine, add_pod):
    add_pod("a", address="")

    assert await read(reader, cache) == ServiceLoad((), 1)


async def test_a_pod_that_stays_unread_is_logged_once(reader, cache, engine, add_pod):
    add_pod("a")
    engine.status = 503
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            await read(reader, cache)
        engine.status = 200
        await read(reader, cache)
        engine.status = 503
        await read(reader, cache)
    assert [(line["event"], line["pod"]) for line in lines] == [("pod not read", "a")] * 2


async def test_a_sample_is_stale_after_three_intervals(reader, cache, engine, add_pod, clock):
    add_pod("a")
    await read(reader, cache)
    engine.status = 500

    clock.now_s += 15
    assert await read(reader, cache) == ServiceLoad((LOAD,), 0)
    clock.now_s += 0.1
    assert await read(reader, cache) == ServiceLoad((), 1)


async def test_a_new_pod_of_the_same_name_does_not_inherit_a_sample(reader, cache, engine, add_pod):
    add_pod("a")
    await read(reader, cache)

    add_pod("a", uid="another", resourceVersion="21")
    assert reader.load(cache.snapshot(KEY)) == ServiceLoad((), 1)


async def test_no_more_pods_are_asked_at_once_than_allowed(reader, cache, engine, add_pod):
    engine.delay_s = 0.02
    for name in "abcdef":
        add_pod(name)

    assert len((await read(reader, cache)).loads) == 6
    assert engine.most_open == 2


async def test_only_services_with_news_are_woken(reader, cache, engine, add_pod, clock):
    add_pod("a")

    async def woken_after(seconds):
        clock.now_s += seconds
        await read(reader, cache)
        return reader.changed_lately()

    assert await woken_after(0) == [KEY]
    assert await woken_after(30) == [KEY], "the status may have been written just before the change"
    assert await woken_after(60) == []
    engine.text = TEXT.replace(" 3.0", " 4.0")
    assert await woken_after(5) == [KEY]

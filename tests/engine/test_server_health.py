"""Health, models, version and metrics."""

from importlib.metadata import version
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.engine.echo_engine import EchoEngine, always
from tests.engine.server_client import Client, client_of, make_state, serving

from octavo_engine.server.info_routes import liveness_problem
from octavo_engine.server.metrics import ALL_METRICS
from octavo_engine.server.metrics_page import page
from octavo_engine.server.state import Phase

METRICS_PAGE = Path(__file__).parents[2] / "engine" / "METRICS.md"


async def test_ready_only_once_the_engine_is_loaded() -> None:
    async with client_of(make_state(None)) as client:
        response = await client.http.get("/readyz")
        alive = await client.http.get("/livez")
    assert response.status_code == 503
    assert response.json()["reason"] == "loading"
    assert alive.status_code == 200


async def test_startup_tells_its_stage_until_the_engine_is_loaded() -> None:
    state = make_state(None)
    state.startup.report("tokenizer", 0.0, 10.0)
    state.startup.report("weights", 0.5, 11.25)
    async with client_of(state) as client:
        response = await client.http.get("/startupz")
    assert response.status_code == 503
    told = response.json()
    assert told["stage"] == "weights"
    assert told["percent"] == 40
    assert told["seconds"] == {"tokenizer": 1.25}


async def test_startup_keeps_the_seconds_of_each_stage_once_the_engine_is_loaded() -> None:
    state = make_state(EchoEngine(always("x")))
    for stage, began_s in (("tokenizer", 0.0), ("weights", 1.0), ("memory", 3.5), ("graphs", 4.0)):
        state.startup.report(stage, 0.0, began_s)
    state.startup.finish(6.0)
    async with client_of(state) as client:
        told = (await client.http.get("/startupz")).json()
    assert told["seconds"] == {"tokenizer": 1.0, "weights": 2.5, "memory": 0.5, "graphs": 2.0}


@pytest.mark.parametrize("path", ["/readyz", "/livez", "/startupz", "/health"])
async def test_healthy_server_says_so(path: str) -> None:
    async with serving(EchoEngine(always("x"))) as client:
        response = await client.http.get(path)
    assert response.status_code == 200


@pytest.mark.parametrize("phase", [Phase.LEAVING, Phase.DRAINING, Phase.STOPPING])
async def test_not_ready_but_alive_from_the_signal_to_stop_on(phase: Phase) -> None:
    state = make_state(EchoEngine(always("x")))
    state.phase = phase
    async with client_of(state) as client:
        assert (await client.http.get("/readyz")).status_code == 503
        assert (await client.http.get("/livez")).status_code == 200


@pytest.mark.parametrize(
    ("num_running", "age_s", "is_alive"), [(0, 500.0, True), (1, 5.0, True), (1, 61.0, False)]
)
async def test_alive_means_that_waiting_work_moves(
    num_running: int, age_s: float, is_alive: bool
) -> None:
    engine = EchoEngine(always("x"))
    engine.num_running, engine.last_step_age_s = num_running, age_s
    async with serving(engine, stall_limit_s=60.0) as client:
        assert (liveness_problem(client.state) is None) == is_alive
        assert (await client.http.get("/livez")).status_code == (200 if is_alive else 503)
        assert (await client.http.get("/readyz")).status_code == (200 if is_alive else 503)


async def test_dead_engine_is_not_alive() -> None:
    engine = EchoEngine(always("x"))
    engine.death = "step 7 raised"
    async with serving(engine) as client:
        response = await client.http.get("/livez")
    assert response.status_code == 503
    assert response.json()["reason"] == "step 7 raised"


async def test_models_tell_the_context_length() -> None:
    async with serving(EchoEngine(always("x"))) as client:
        models = (await client.http.get("/v1/models")).json()
        one = (await client.http.get("/v1/models/alias")).json()
    assert [(m["id"], m["max_model_len"]) for m in models["data"]] == [
        ("echo", 200),
        ("alias", 200),
    ]
    assert one == models["data"][1]


async def test_unknown_model_card_is_a_404() -> None:
    async with serving(EchoEngine(always("x"))) as client:
        response = await client.http.get("/v1/models/nothing")
    assert response.status_code == 404


async def test_version_is_that_of_the_distribution() -> None:
    async with serving(EchoEngine(always("x"))) as client:
        assert (await client.http.get("/version")).json()["version"] == version("octavo")


async def scrape(client: Client) -> dict[str, float]:
    """Sample values by name; labels must be those of the schema."""
    text = (await client.http.get("/metrics")).text
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if family.name.startswith("http_"):
                labels = ("method", "handler", "status")
                named = [sample.labels[label] for label in labels if label in sample.labels]
                samples[sample.name + "".join(f"[{value}]" for value in named)] = sample.value
                continue
            assert sample.labels["model_name"] == "echo"
            assert sample.labels["engine"] == "0"
            extra = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            samples[sample.name + "".join(sorted(f"[{v}]" for v in extra.values()))] = sample.value
    return samples


async def test_metrics_carry_the_engines_counters_under_vllms_names() -> None:
    async with serving(EchoEngine(always("abc"))) as client:
        await client.complete("hi")
        samples = await scrape(client)
    expected = {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:prompt_tokens_total": 2,
        "vllm:generation_tokens_total": 3,
        "vllm:request_success_total[stop]": 2,
        "vllm:request_success_total[length]": 1,
        "vllm:num_preemptions_total": 1,
        "vllm:prefix_cache_queries_total": 10,
        "vllm:prefix_cache_hits_total": 4,
        "vllm:num_requests_waiting_by_reason[capacity]": 0,
        "vllm:iteration_tokens_total_count": 0,
        "octavo:steps_total": 7,
        "octavo:max_num_seqs": 8,
        "octavo:kv_blocks[used]": 16,
        "octavo:kv_blocks[cached]": 3,
        "octavo:kv_blocks[free]": 45,
        "octavo:step_seconds_total[schedule]": 0,
        "octavo:draining": 0,
        "octavo:phase[ready]": 1,
        "octavo:phase[draining]": 0,
    }
    assert {name: samples[name] for name in expected} == expected


async def test_latencies_are_observed_once_a_request_and_once_a_gap() -> None:
    async with serving(EchoEngine(always("abc"))) as client:
        await client.complete("hi")
        await client.stream_chat()
        samples = await scrape(client)
    assert samples["vllm:time_to_first_token_seconds_count"] == 2
    assert samples["vllm:inter_token_latency_seconds_count"] == 4
    assert samples["vllm:e2e_request_latency_seconds_count"] == 2
    assert "vllm:inter_token_latency_seconds_bucket[0.004]" in samples
    assert samples["vllm:request_prompt_tokens_count"] == 2
    assert samples["vllm:request_generation_tokens_sum"] == 6
    assert samples["vllm:request_decode_time_seconds_count"] == 2
    assert samples["vllm:request_params_n_sum"] == 2


async def test_every_answer_is_counted_by_its_route_and_class_of_status() -> None:
    async with serving(EchoEngine(always("abc"))) as client:
        await client.complete("hi")
        await client.refused("/v1/completions", {}, status=400)
        await client.refused("/v1/no/such/path", {}, status=404)
        samples = await scrape(client)
    assert samples["http_requests_total[POST][/v1/completions][2xx]"] == 1
    assert samples["http_requests_total[POST][/v1/completions][4xx]"] == 1
    assert samples["http_requests_total[POST][none][4xx]"] == 1
    assert samples["http_request_duration_seconds_count[POST][/v1/completions]"] == 2


async def test_refusals_for_lack_of_room_are_counted_by_reason() -> None:
    engine = EchoEngine(always("x"))
    engine.is_queue_full = True
    async with serving(engine) as client:
        await client.refused("/v1/completions", {"model": "echo", "prompt": "a"}, status=429)
        samples = await scrape(client)
    assert samples["vllm:admission_rejections_total[queue_full]"] == 1


async def test_prefix_of_the_common_names_can_be_chosen() -> None:
    async with serving(EchoEngine(always("abc")), metrics_prefix="other:") as client:
        samples = await scrape(client)
    assert "other:num_requests_running" in samples
    assert not any(name.startswith("vllm:") for name in samples)
    assert "octavo:steps_total" in samples


def test_reference_page_is_up_to_date() -> None:
    assert METRICS_PAGE.read_text() == page(), "run `make metrics`"


async def test_every_metric_of_a_server_at_work_is_in_the_schema() -> None:
    async with serving(EchoEngine(always("abc"))) as client:
        await client.complete("hi")
        text = (await client.http.get("/metrics")).text
    named = {spec.full_name("vllm:") for spec in ALL_METRICS}
    seen = {family.name.removesuffix("_created") for family in text_string_to_metric_families(text)}
    assert seen <= named


async def test_metrics_answer_while_loading() -> None:
    async with client_of(make_state(None)) as client:
        samples = await scrape(client)
    assert samples["octavo:draining"] == 0
    assert "vllm:num_requests_running" not in samples


async def test_names_keep_their_colons_whatever_format_the_scraper_prefers() -> None:
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
    async with serving(EchoEngine(always("abc"))) as client:
        response = await client.http.get("/metrics", headers=accept)
    assert "\nvllm:num_requests_running{" in response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_time_to_compile_a_grammar_is_observed() -> None:
    async with serving(EchoEngine(always("{}"))) as client:
        await client.chat(response_format={"type": "json_object"})
        samples = await scrape(client)
    assert samples["octavo:grammar_compile_seconds_count"] == 1

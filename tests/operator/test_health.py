"""The operator's own HTTP."""

import httpx

from octavo_operator import health
from octavo_operator.metrics import Metrics


async def get(path, check=lambda: None, metrics=None, refresh=lambda: None):
    application = health.app(check, metrics or Metrics(), refresh)
    async with (
        health.serving(application, "127.0.0.1", 0) as port,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        return await client.get(f"http://127.0.0.1:{port}{path}")


async def test_healthy_when_nothing_is_stale():
    assert (await get("/healthz")).status_code == 200


async def test_unhealthy_with_the_cause():
    answer = await get("/healthz", lambda: "nothing listed anew for 99 s")

    assert (answer.status_code, answer.text) == (503, "nothing listed anew for 99 s\n")


async def test_metrics_are_told():
    metrics = Metrics()
    metrics.api_calls.labels("GET", "pods", "200").inc()

    answer = await get("/metrics", metrics=metrics)
    sample = 'octavo_operator_api_calls_total{code="200",resource="pods",verb="GET"} 1.0'
    assert sample in answer.text.splitlines()


async def test_the_age_of_a_watch_is_told_and_begins_anew_with_each_word(monkeypatch):
    metrics, clock_s = Metrics(), [100.0]
    monkeypatch.setattr("octavo_operator.metrics.time.monotonic", lambda: clock_s[0])

    def age_s():
        return metrics.registry.get_sample_value(
            "octavo_operator_watch_age_seconds", {"kind": "Pod"}
        )

    assert age_s() is None, "a kind that was never told of has no age"
    metrics.told_of("Pod")
    clock_s[0] = 107.0
    assert age_s() == 7.0
    metrics.told_of("Pod")
    assert age_s() == 0.0


async def test_what_is_counted_when_asked_for_is_up_to_date():
    metrics = Metrics()

    def count():
        metrics.services.labels("Ready", "True").set(3)

    answer = await get("/metrics", metrics=metrics, refresh=count)
    sample = 'octavo_operator_services{condition="Ready",status="True"} 3.0'
    assert sample in answer.text.splitlines()

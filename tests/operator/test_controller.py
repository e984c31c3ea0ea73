"""The controller's workers: what one service does to the others."""

import asyncio

import pytest
import structlog

from octavo_operator.config import OperatorConfig
from octavo_operator.controller import Controller
from octavo_operator.errors import ApiUnavailable
from octavo_operator.kinds import INFERENCE_SERVICE
from octavo_operator.metrics import Metrics

GOOD, BAD = ("team", "good"), ("team", "bad")


class ScriptedReconciler:
    """Raises what the test says for BAD, and tells which services it was asked for."""

    def __init__(self, error):
        self.error = error
        self.asked = []

    async def reconcile(self, key):
        self.asked.append(key)
        if key == BAD:
            raise self.error
        return "unchanged"


@pytest.mark.parametrize("error", [KeyError("a bug"), ApiUnavailable("PATCH", 503, "down")])
async def test_a_service_that_cannot_be_reconciled_does_not_stop_the_others(
    fake_cluster, engine_defaults, error
):
    async def may_write():
        pass

    metrics = Metrics()
    config = OperatorConfig(engine=engine_defaults, workers=1)
    controller = Controller(config, fake_cluster, metrics, may_write, asyncio.Event())
    controller._reconciler = ScriptedReconciler(error)
    for key in (BAD, GOOD):
        controller._queue.wake(key)

    with structlog.testing.capture_logs() as logs:
        work = asyncio.create_task(controller._work())
        async with asyncio.timeout(5):
            while controller._reconciler.asked.count(BAD) < 2:
                await asyncio.sleep(0.01)
    work.cancel()

    assert controller._reconciler.asked[:2] == [BAD, GOOD]
    assert [line["service"] for line in logs][:1] == ["team/bad"]
    failed = metrics.registry.get_sample_value(
        "octavo_operator_reconcile_duration_seconds_count", {"outcome": "failed"}
    )
    assert failed >= 1


async def test_nothing_is_written_before_it_may_be(fake_cluster, engine_defaults):
    held = asyncio.Event()
    config = OperatorConfig(engine=engine_defaults, workers=1)
    controller = Controller(config, fake_cluster, Metrics(), held.wait, asyncio.Event())
    controller._reconciler = ScriptedReconciler(None)
    controller._queue.wake(GOOD)
    work = asyncio.create_task(controller._work())
    await asyncio.sleep(0.05)
    assert controller._reconciler.asked == []

    held.set()
    async with asyncio.timeout(5):
        while not controller._reconciler.asked:
            await asyncio.sleep(0.01)

    work.cancel()


async def test_lines_logged_meanwhile_name_the_service_and_its_generation(
    fake_cluster, engine_defaults, service_body
):
    class Logging:
        async def reconcile(self, key):
            self.seen = structlog.contextvars.get_contextvars()
            return "unchanged"

    async def may_write():
        pass

    config = OperatorConfig(engine=engine_defaults, workers=1)
    controller = Controller(config, fake_cluster, Metrics(), may_write, asyncio.Event())
    controller._reconciler = Logging()
    controller._cache.put(INFERENCE_SERVICE, service_body(generation=7))
    controller._queue.wake(("team", "chat"))
    await controller._queue.take()

    await controller._reconcile(("team", "chat"))

    assert controller._reconciler.seen == {"service": "team/chat", "generation": 7}
    assert structlog.contextvars.get_contextvars() == {}

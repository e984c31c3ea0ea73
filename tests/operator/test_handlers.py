"""kopf's part: what its events do, and what it must not do by itself."""

import kopf
import pytest

from octavo_operator import handlers
from octavo_operator.cache import ObjectCache
from octavo_operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, POD_MONITOR, WATCHED_KINDS
from octavo_operator.metrics import Metrics

KEY = ("team", "chat")


class Recorder:
    def __init__(self):
        self.cache = ObjectCache()
        self.woken = []
        self.num_listings = 0

    def listed(self):
        self.num_listings += 1

    def handler(self, kind):
        return handlers._handler(kind, self.cache, self.woken.append, self.listed, Metrics())


@pytest.fixture
def recorder():
    return Recorder()


@pytest.mark.parametrize("event_type", ["ADDED", "MODIFIED", None])
async def test_an_event_is_kept_and_wakes_its_service(recorder, pod_body, event_type):
    await recorder.handler(POD)(event={"type": event_type, "object": pod_body()})

    assert recorder.woken == [KEY]
    assert len(recorder.cache.snapshot(KEY).pods) == 1


async def test_a_deletion_is_forgotten_and_wakes_its_service(recorder, pod_body):
    handler = recorder.handler(POD)
    await handler(event={"type": "ADDED", "object": pod_body()})
    await handler(event={"type": "DELETED", "object": pod_body()})

    assert recorder.woken == [KEY, KEY]
    assert recorder.cache.snapshot(KEY).pods == ()


async def test_what_is_known_already_wakes_nobody(recorder, service_body):
    handler = recorder.handler(INFERENCE_SERVICE)
    await handler(event={"type": "ADDED", "object": service_body()})
    await handler(event={"type": "MODIFIED", "object": service_body()})

    assert recorder.woken == [KEY]


async def test_a_fresh_listing_of_kopf_is_told(recorder, service_body):
    handler = recorder.handler(INFERENCE_SERVICE)
    await handler(event={"type": "ADDED", "object": service_body()})
    assert recorder.num_listings == 0

    await handler(event={"type": None, "object": service_body()})

    assert recorder.num_listings == 1


def test_kopf_stores_nothing_and_blocks_no_deletion(recorder):
    registry = handlers.registry(recorder.cache, recorder.woken.append, recorder.listed, Metrics())

    watched = [handler.selector.any_name for handler in registry._watching.get_all_handlers()]
    assert sorted(watched) == sorted(kind.plural for kind in WATCHED_KINDS)
    assert not list(registry._changing.get_all_handlers())
    assert not list(registry._spawning.get_all_handlers())


def test_optional_kinds_are_watched_while_they_are_served(recorder):
    registry = handlers.registry(
        recorder.cache, recorder.woken.append, recorder.listed, Metrics(), (POD, POD_MONITOR)
    )

    watched = [handler.selector.any_name for handler in registry._watching.get_all_handlers()]
    assert sorted(watched) == ["podmonitors", "pods"]


def test_kopf_neither_posts_nor_peers_nor_kills():
    settings = handlers.settings()

    assert not settings.posting.enabled
    assert settings.peering.standalone
    assert settings.scanning.disabled
    assert settings.process.ultimate_exiting_timeout is None
    assert isinstance(settings, kopf.OperatorSettings)


def test_children_are_watched_by_label_and_services_all():
    selectors = handlers.settings().watching.label_selectors

    def of(kind):
        group, version = kind.group_version
        key = (group, version, kind.plural)
        return selectors.get(key)

    assert of(INFERENCE_SERVICE) is None
    for kind in (POD, DEPLOYMENT, POD_MONITOR):
        assert "serving.octavo.dev/service" in of(kind)

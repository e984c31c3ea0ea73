"""The full listing."""

import asyncio

import pytest

from octavo_operator import resync
from octavo_operator.cache import ObjectCache
from octavo_operator.cluster import Listing
from octavo_operator.errors import ApiUnavailable
from octavo_operator.kinds import INFERENCE_SERVICE, MANAGED_SELECTOR, POD_MONITOR, WATCHED_KINDS
from octavo_operator.metrics import Metrics
from octavo_operator.optional_kinds import OptionalKinds
from octavo_operator.resync import Resync

KEY = ("team", "chat")


class FakeListings:
    def __init__(self, service):
        self.service = service
        self.listed = []
        self.served = set()
        self.num_failures = 0

    async def serves(self, kind):
        return kind in self.served

    async def list(self, kind, namespace, label_selector=""):
        if self.num_failures:
            self.num_failures -= 1
            raise ApiUnavailable("LIST", 0, "no answer")
        self.listed.append((kind.name, namespace, label_selector))
        return Listing((self.service,) if kind == INFERENCE_SERVICE else (), "50")


@pytest.fixture
def listings(service_body):
    return FakeListings(service_body())


@pytest.fixture
def woken():
    return []


@pytest.fixture
def make(listings, woken):
    def resync_with(interval_s=60.0, namespaces=(None,)):
        optional = OptionalKinds(listings, (POD_MONITOR,))
        metrics, cache = Metrics(), ObjectCache()
        return Resync(listings, cache, woken.append, metrics, namespaces, interval_s, optional)

    return resync_with


async def test_every_service_is_woken(make, woken):
    await make().once()

    assert woken == [KEY]


async def test_children_are_listed_by_label_and_services_all(make, listings):
    await make(namespaces=("a", "b")).once()

    assert ("InferenceService", "a", "") in listings.listed
    assert ("Pod", "b", MANAGED_SELECTOR) in listings.listed
    assert len(listings.listed) == 2 * len(WATCHED_KINDS)


async def test_an_optional_kind_is_listed_while_it_is_served(make, listings):
    made = make()
    await made.once()
    assert ("PodMonitor", None, MANAGED_SELECTOR) not in listings.listed

    listings.served.add(POD_MONITOR)
    await made.once()

    assert listings.listed.count(("PodMonitor", None, MANAGED_SELECTOR)) == 1


async def test_the_first_listing_waits_for_the_api_server(make, listings, woken, monkeypatch):
    monkeypatch.setattr(resync, "_RETRY_S", 0.01)
    listings.num_failures = 3

    await make().until_done()

    assert woken == [KEY]


async def test_age_counts_from_the_first_try(make, listings):
    made = make()
    assert made.age_s is None
    listings.num_failures = 10**6
    trying = asyncio.create_task(made.until_done())
    await asyncio.sleep(0.05)

    assert made.age_s >= 0.04
    trying.cancel()


@pytest.mark.parametrize("cause", ["interval", "gap"])
async def test_it_lists_again_at_intervals_and_after_a_gap(make, woken, monkeypatch, cause):
    monkeypatch.setattr(resync, "_SETTLE_S", 0.01)
    made = make(interval_s=0.05 if cause == "interval" else 60.0)
    running = asyncio.create_task(made.run())
    if cause == "gap":
        made.after_gap()
        made.after_gap()

    async with asyncio.timeout(5):
        while not woken:
            await asyncio.sleep(0.01)

    running.cancel()

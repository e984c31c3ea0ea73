"""One active operator."""

import asyncio
import copy

import pytest

from octavo_operator.config import LeaseSettings
from octavo_operator.errors import ApiRejected, ApiUnavailable, LeaseLost
from octavo_operator.lease import LeaderLease

SETTINGS = LeaseSettings.model_construct(
    name="octavo", duration_seconds=1.0, renew_deadline_seconds=0.6, retry_seconds=0.02
)


class FakeLeases:
    """One Lease with the API server's optimistic locking."""

    def __init__(self):
        self.lease = None
        self.is_down = False
        self.num_reads = 0

    async def get(self, kind, namespace, name):
        self._check()
        self.num_reads += 1
        return copy.deepcopy(self.lease)

    async def create(self, kind, lease):
        self._check()
        if self.lease is not None:
            raise ApiUnavailable("POST", 409, "exists")
        return self._store(lease)

    async def replace(self, kind, lease):
        self._check()
        if lease["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiUnavailable("PUT", 409, "changed")
        return self._store(lease)

    def take(self, holder):
        """As another candidate does."""
        self._store({**self.lease, "spec": {**self.lease["spec"], "holderIdentity": holder}})

    def _store(self, lease):
        version = 0 if self.lease is None else int(self.lease["metadata"]["resourceVersion"])
        self.lease = copy.deepcopy(lease)
        self.lease["metadata"]["resourceVersion"] = str(version + 1)
        return copy.deepcopy(self.lease)

    def _check(self):
        if self.is_down:
            raise ApiUnavailable("GET", 0, "no answer")

    @property
    def holder(self):
        return self.lease["spec"]["holderIdentity"]


@pytest.fixture
def leases():
    return FakeLeases()


def candidate(leases, identity):
    return LeaderLease(leases, SETTINGS, "octavo-system", identity)


async def within(coroutine, seconds=5.0):
    async with asyncio.timeout(seconds):
        return await coroutine


async def test_the_first_candidate_gets_a_free_lease(leases):
    await within(candidate(leases, "a").acquire())

    assert leases.holder == "a"


async def test_a_standby_waits_while_the_lease_is_renewed(leases):
    first = candidate(leases, "a")
    await within(first.acquire())
    holding = asyncio.create_task(first.hold(lambda: None))

    with pytest.raises(TimeoutError):
        await within(candidate(leases, "b").acquire(), 2.0)

    holding.cancel()
    assert leases.holder == "a"


async def test_a_standby_takes_over_a_dead_lease(leases):
    await within(candidate(leases, "a").acquire())

    await within(candidate(leases, "b").acquire())

    assert leases.holder == "b"
    assert leases.lease["spec"]["leaseTransitions"] == 1


async def test_a_released_lease_is_taken_at_once(leases):
    first = candidate(leases, "a")
    await within(first.acquire())
    await first.release()

    await within(candidate(leases, "b").acquire(), 0.7)

    assert leases.holder == "b"


async def test_only_the_holder_releases(leases):
    await within(candidate(leases, "a").acquire())

    await candidate(leases, "b").release()

    assert leases.holder == "a"


async def test_a_restarted_holder_has_its_lease_at_once(leases):
    await within(candidate(leases, "a").acquire())

    await within(candidate(leases, "a").acquire(), 0.7)

    assert leases.lease["spec"]["leaseTransitions"] == 0


async def test_of_two_candidates_one_gets_the_lease(leases):
    tasks = [asyncio.create_task(candidate(leases, name).acquire()) for name in "ab"]
    done, pending = await asyncio.wait(tasks, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()

    assert (len(done), len(pending)) == (1, 1)


async def test_a_short_absence_of_the_api_server_is_survived(leases):
    lease = candidate(leases, "a")
    await within(lease.acquire())
    holding = asyncio.create_task(lease.hold(lambda: None))
    leases.is_down = True
    await asyncio.sleep(0.1)
    leases.is_down = False
    await asyncio.sleep(0.8)

    assert not holding.done()
    holding.cancel()


async def test_a_long_absence_of_the_api_server_rests_the_holder_until_it_is_over(leases):
    lease = candidate(leases, "a")
    await within(lease.acquire())
    await within(lease.until_fresh(), 0.1)
    rests = []
    holding = asyncio.create_task(lease.hold(lambda: rests.append(1)))
    leases.is_down = True
    await asyncio.sleep(1.0)

    with pytest.raises(TimeoutError):
        await within(lease.until_fresh(), 0.1)
    assert rests == []
    leases.is_down = False
    await within(lease.until_fresh(), 1.0)

    assert rests == [1], "told once, to look at what was missed"
    assert not holding.done()
    holding.cancel()


async def test_a_holder_that_was_away_too_long_finds_another(leases):
    lease = candidate(leases, "a")
    await within(lease.acquire())
    leases.is_down = True
    holding = asyncio.create_task(lease.hold(lambda: None))
    await asyncio.sleep(1.0)
    leases.take("b")
    leases.is_down = False

    with pytest.raises(LeaseLost, match="another operator"):
        await within(holding)


async def test_a_lease_taken_by_another_is_lost(leases):
    lease = candidate(leases, "a")
    await within(lease.acquire())
    leases.take("b")

    with pytest.raises(LeaseLost, match="another operator"):
        await within(lease.hold(lambda: None))


async def test_a_renewal_that_meets_another_write_is_tried_again(leases):
    """Somebody may annotate the Lease between our read and our write."""
    lease = candidate(leases, "a")
    await within(lease.acquire())
    replace, conflicts = leases.replace, []

    async def conflict_once(kind, body):
        if not conflicts:
            conflicts.append(body)
            raise ApiUnavailable("PUT", 409, "changed")
        return await replace(kind, body)

    leases.replace = conflict_once
    holding = asyncio.create_task(lease.hold(lambda: None))
    await asyncio.sleep(0.2)

    assert conflicts
    assert not holding.done()
    holding.cancel()


async def test_a_refusal_is_tried_again(leases):
    async def refuse(*_):
        raise ApiRejected("GET", 403, "forbidden")

    get, leases.get = leases.get, refuse
    task = asyncio.create_task(candidate(leases, "a").acquire())
    await asyncio.sleep(0.03)
    assert not task.done()
    leases.get = get

    await within(task)


async def test_a_renewal_is_one_call(leases):
    lease = candidate(leases, "a")
    await within(lease.acquire())
    reads = leases.num_reads
    version = int(leases.lease["metadata"]["resourceVersion"])
    holding = asyncio.create_task(lease.hold(lambda: None))

    async def renewed():
        while int(leases.lease["metadata"]["resourceVersion"]) < version + 3:
            await asyncio.sleep(0.01)

    await within(renewed())
    assert leases.num_reads == reads
    holding.cancel()


async def test_a_lease_that_somebody_removed_is_made_again(leases):
    lease = candidate(leases, "a")
    await within(lease.acquire())
    leases.lease = None

    async def missing(kind, body):
        raise ApiRejected("PUT", 404, "not found")

    leases.replace = missing
    holding = asyncio.create_task(lease.hold(lambda: None))

    async def made():
        while leases.lease is None:
            await asyncio.sleep(0.01)

    await within(made())
    assert leases.holder == "a"
    holding.cancel()

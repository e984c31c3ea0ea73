"""Which kinds of other projects are used, by what the API server says of them."""

import pytest

from octavo_operator.errors import ApiRejected, ApiUnavailable
from octavo_operator.kinds import DEPLOYMENT, POD_MONITOR
from octavo_operator.optional_kinds import OptionalKinds

GOING = "not allowed while custom resource definition is terminating"


@pytest.fixture
def kinds(fake_cluster):
    return OptionalKinds(fake_cluster, (POD_MONITOR,))


async def test_a_kind_comes_and_goes(kinds, fake_cluster):
    await kinds.look()
    assert (kinds.served, kinds.changed.is_set()) == ((), False)

    fake_cluster.served.add(POD_MONITOR)
    await kinds.look()
    assert (kinds.served, kinds.changed.is_set()) == ((POD_MONITOR,), True)

    kinds.changed.clear()
    await kinds.look()
    assert not kinds.changed.is_set()

    fake_cluster.served.clear()
    await kinds.look()
    assert (kinds.served, kinds.changed.is_set()) == ((), True)


async def test_what_is_not_wished_is_not_used(fake_cluster):
    fake_cluster.served.add(POD_MONITOR)
    kinds = OptionalKinds(fake_cluster, ())
    await kinds.look()

    assert kinds.served == ()


@pytest.mark.parametrize(
    ("kind", "status", "is_gone"),
    [(POD_MONITOR, 404, True), (POD_MONITOR, 422, False), (DEPLOYMENT, 404, False)],
)
async def test_a_refusal_tells_that_an_optional_kind_is_gone(
    kinds, fake_cluster, kind, status, is_gone
):
    fake_cluster.served.add(POD_MONITOR)
    await kinds.look()

    for _of_each_service in range(2):
        assert kinds.is_refused(kind, ApiRejected("PATCH", status, "no")) is is_gone
    assert (kinds.served == ()) is is_gone


@pytest.mark.parametrize(
    ("kind", "message", "is_going"),
    [
        (POD_MONITOR, f'"chat" is forbidden: create {GOING}', True),
        (POD_MONITOR, 'User "octavo" cannot patch resource "podmonitors"', False),
        (DEPLOYMENT, f'"chat" is forbidden: create {GOING}', False),
    ],
)
async def test_a_kind_that_goes_is_used_until_it_has_gone(
    kinds, fake_cluster, kind, message, is_going
):
    fake_cluster.served.add(POD_MONITOR)
    await kinds.look()

    assert kinds.is_refused(kind, ApiRejected("PATCH", 403, message)) is is_going
    assert kinds.served == (POD_MONITOR,)


async def test_without_the_right_to_ask_a_kind_counts_as_absent(kinds, fake_cluster):
    async def refused(kind):
        raise ApiRejected("DISCOVER", 403, "forbidden")

    fake_cluster.serves = refused
    await kinds.look()

    assert kinds.served == ()


async def test_no_answer_is_no_absence(kinds, fake_cluster):
    async def down(kind):
        raise ApiUnavailable("DISCOVER", 503, "down")

    fake_cluster.serves = down
    with pytest.raises(ApiUnavailable):
        await kinds.look()

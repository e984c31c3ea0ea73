"""What the client makes of an API server's answers, over HTTP to a server of the test's own."""

from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from octavo_operator.cluster import Cluster
from octavo_operator.errors import ApiRejected, ApiUnavailable
from octavo_operator.health import serving
from octavo_operator.kinds import INFERENCE_SERVICE, POD, SERVICE
from octavo_operator.metrics import Metrics

Answer = Callable[[web.Request], web.StreamResponse]


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
async def cluster(metrics):
    """A client, and the list of (request, body) that its server got; `server.answer` answers."""
    server = Server()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    async with serving(application, "127.0.0.1", 0) as port:
        configuration = Configuration(host=f"http://127.0.0.1:{port}")
        configuration.client_session_kwargs = {"trust_env": False}
        async with ApiClient(configuration) as client:
            made = Cluster(client, metrics)
            made.server = server
            yield made


class Server:
    def __init__(self) -> None:
        self.requests: list[tuple[web.Request, Any]] = []
        self.answer: Answer = lambda _: web.json_response({"ok": True})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.requests.append((request, body))
        return self.answer(request)


def failure(status, message="no", headers=None):
    return lambda _: web.json_response({"message": message}, status=status, headers=headers)


MANIFEST = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "chat", "namespace": "team"},
}


async def test_apply_is_server_side_and_forced(cluster):
    await cluster.apply(MANIFEST)

    ((request, body),) = cluster.server.requests
    assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/team/services/chat")
    assert dict(request.query) == {"fieldManager": "octavo-operator", "force": "true"}
    assert request.content_type == "application/apply-patch+yaml"
    assert body == MANIFEST


async def test_a_status_goes_to_its_subresource(cluster):
    await cluster.patch_status(INFERENCE_SERVICE, "team", "chat", {"status": {"a": 1}})

    ((request, _),) = cluster.server.requests
    assert request.path.endswith("/namespaces/team/inferenceservices/chat/status")
    assert request.content_type == "application/merge-patch+json"


async def test_what_is_not_there_is_none(cluster):
    cluster.server.answer = failure(404)

    assert await cluster.get(SERVICE, "team", "chat") is None


@pytest.mark.parametrize("status", [400, 403, 404, 405, 422])
async def test_a_refusal_is_permanent(cluster, status):
    cluster.server.answer = failure(status, "spec.x: wrong")

    with pytest.raises(ApiRejected, match=r"PATCH .*/services/chat: \d+ spec\.x: wrong") as caught:
        await cluster.apply(MANIFEST)
    assert caught.value.status == status


@pytest.mark.parametrize("status", [401, 409, 429, 500, 503])
async def test_trouble_of_the_server_is_temporary(cluster, status):
    cluster.server.answer = failure(status)

    with pytest.raises(ApiUnavailable) as caught:
        await cluster.apply(MANIFEST)
    assert caught.value.retry_after_s is None


async def test_the_servers_wish_to_wait_is_kept(cluster):
    cluster.server.answer = failure(429, headers={"Retry-After": "7"})

    with pytest.raises(ApiUnavailable) as caught:
        await cluster.apply(MANIFEST)
    assert caught.value.retry_after_s == 7.0


async def test_an_answer_that_is_no_json_is_shown(cluster):
    cluster.server.answer = lambda _: web.Response(status=502, text="<html>bad gateway</html>")

    with pytest.raises(ApiUnavailable, match="bad gateway"):
        await cluster.apply(MANIFEST)


async def test_no_answer_is_temporary(metrics):
    async with ApiClient(Configuration(host="http://127.0.0.1:1")) as client:
        with pytest.raises(ApiUnavailable, match="no answer") as caught:
            await Cluster(client, metrics).get(SERVICE, "team", "chat")
    assert caught.value.status == 0


async def test_a_long_list_is_read_page_by_page(cluster):
    def page(request):
        is_second = request.query.get("continue") == "more"
        return web.json_response(
            {
                "metadata": {"resourceVersion": "9", "continue": "" if is_second else "more"},
                "items": [{"metadata": {"name": "b" if is_second else "a"}}],
            }
        )

    cluster.server.answer = page

    listing = await cluster.list(POD, None, "x=y")

    assert [item["metadata"]["name"] for item in listing.items] == ["a", "b"]
    assert {item["kind"] for item in listing.items} == {"Pod"}
    assert listing.resource_version == "9"
    assert [request.query["labelSelector"] for request, _ in cluster.server.requests] == ["x=y"] * 2


@pytest.mark.parametrize(
    ("answer", "code"), [(lambda _: web.json_response({}), "200"), (failure(503), "503")]
)
async def test_calls_are_counted(cluster, metrics, answer, code):
    cluster.server.answer = answer
    try:
        await cluster.get(SERVICE, "team", "chat")
    except ApiUnavailable:
        assert code == "503"

    labels = {"verb": "GET", "resource": "services", "code": code}
    assert metrics.registry.get_sample_value("octavo_operator_api_calls_total", labels) == 1


async def test_a_patch_of_what_has_gone_is_none(cluster):
    cluster.server.answer = failure(404)

    assert await cluster.patch(POD, "team", "a", {"count": 2}) is None


async def test_a_deletion_is_of_that_very_object(cluster):
    await cluster.delete(SERVICE, "team", "chat", "uid-1")

    ((request, body),) = cluster.server.requests
    assert (request.method, request.path) == ("DELETE", "/api/v1/namespaces/team/services/chat")
    assert body["preconditions"] == {"uid": "uid-1"}


async def test_what_has_gone_already_needs_no_deletion(cluster):
    cluster.server.answer = failure(404)

    await cluster.delete(SERVICE, "team", "chat", "uid-1")
    assert await cluster.evict("team", "chat-1", "uid-1") is False


async def test_an_eviction_is_of_that_very_pod(cluster):
    assert await cluster.evict("team", "chat-1", "uid-1") is True

    ((request, body),) = cluster.server.requests
    path = "/api/v1/namespaces/team/pods/chat-1/eviction"
    assert (request.method, request.path) == ("POST", path)
    assert (body["kind"], body["metadata"]["name"]) == ("Eviction", "chat-1")
    assert body["deleteOptions"] == {"preconditions": {"uid": "uid-1"}}


async def test_an_eviction_that_a_budget_holds_up_is_temporary(cluster):
    cluster.server.answer = failure(429, "it would violate the budget")

    with pytest.raises(ApiUnavailable):
        await cluster.evict("team", "chat-1", "uid-1")

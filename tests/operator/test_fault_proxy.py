"""The test proxy does what its faults say, and nothing while it is calm."""

import asyncio
import ssl

import aiohttp
import pytest
import trustme
from aiohttp import web
from tests.operator.fault_proxy import FaultProxy, Faults

NONE = Faults(too_many=0, conflict=0, error=0, lost_answer=0, cut=0, delay=0)


@pytest.fixture
async def server():
    """A server with TLS that counts its calls, and streams when it is asked to watch."""
    authority = trustme.CA()
    calls: list[str] = []

    async def handle(request):
        calls.append(f"{request.method} {request.path_qs} {await request.text()}")
        if "watch" not in request.query:
            return web.json_response({"items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"{}\n")
            await asyncio.sleep(0.05)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    proxy = FaultProxy(
        f"https://127.0.0.1:{runner.addresses[0][1]}", authority.cert_pem.bytes().decode(), seed=1
    )
    yield proxy, calls
    await asyncio.to_thread(proxy.remove)
    await runner.cleanup()


async def ask(proxy, method="GET", path="/api/v1/pods?limit=1", body=None):
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, proxy.url + path, data=body) as answer,
    ):
        return answer.status, await answer.text(), answer.headers


async def test_a_calm_proxy_passes_calls_as_they_are(server):
    proxy, calls = server

    status, text, _ = await ask(proxy, "PATCH", "/x?fieldManager=a%2Fb", "body")
    assert (status, text) == (200, '{"items": []}')
    assert calls == ["PATCH /x?fieldManager=a/b body"]
    assert not proxy.counts


@pytest.mark.parametrize(
    ("kind", "code", "arrives"),
    [
        ("too_many", 429, False),
        ("conflict", 409, False),
        ("error", 500, False),
        ("lost_answer", 500, True),
        ("delay", 200, True),
    ],
)
async def test_each_fault_is_what_it_says(server, kind, code, arrives):
    proxy, calls = server
    proxy.disturb(Faults(**{**vars(NONE), kind: 1.0, "longest_delay_s": 0.1}))

    status, _, headers = await ask(proxy, "POST")
    assert status == code
    assert bool(calls) == arrives
    assert proxy.counts[kind] == 1
    assert ("Retry-After" in headers) == (code == 429)


async def test_reads_meet_no_conflict(server):
    proxy, _ = server
    proxy.disturb(Faults(**{**vars(NONE), "conflict": 1.0}))

    assert (await ask(proxy))[0] == 200


async def test_a_cut_connection_has_no_answer(server):
    proxy, calls = server
    proxy.disturb(Faults(**{**vars(NONE), "cut": 1.0}))

    with pytest.raises(aiohttp.ClientError):
        await ask(proxy, "POST")
    assert calls == []


async def test_watches_are_cut_in_the_middle(server):
    proxy, _ = server
    proxy.disturb(Faults(**{**vars(NONE), "longest_watch_s": 0.5}))

    with pytest.raises(aiohttp.ClientError):
        await ask(proxy, path="/api/v1/pods?watch=true")
    assert proxy.counts["watch"] == 1

"""API keys, TLS and the bounds on what a client may send: what keeps strangers out."""

import asyncio
import os
import ssl
from pathlib import Path

import httpx
import pytest
import trustme
from tests.engine.echo_engine import EchoEngine, always
from tests.engine.server_client import Client, chat_body, client_of, make_state, serving
from tests.engine.test_server_life import process

from octavo_engine.errors import ConfigError
from octavo_engine.server.api_keys import ApiKeys
from octavo_engine.server.app import build_app
from octavo_engine.server.auth import OPEN_PATHS
from octavo_engine.server.errors import MAX_PARAM_CHARS
from octavo_engine.server.tls import ServerTls, TlsSettings

CHAT = "/v1/chat/completions"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def status(client: Client, headers: dict[str, str]) -> int:
    return (await client.http.post(CHAT, json=chat_body(), headers=headers)).status_code


async def test_each_of_several_keys_opens_and_no_other_does(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# team a\nkey-a\n\n  key-b  \n")
    engine = EchoEngine(always("x"))
    async with serving(engine, api_keys=("key-env",), api_key_file=file) as client:
        for key in ("key-a", "key-b", "key-env"):
            assert await status(client, bearer(key)) == 200
        num_served = len(engine.requests)
        for headers in (
            bearer("key-c"),
            bearer(""),
            bearer("# team a"),
            {},
            {"Authorization": "key-a"},
        ):
            assert await status(client, headers) == 401
    assert len(engine.requests) == num_served == 3


async def test_refusal_says_how_to_send_a_key_and_quotes_none() -> None:
    async with serving(EchoEngine(always("x")), api_keys=("right",)) as client:
        response = await client.http.post(CHAT, json=chat_body(), headers=bearer("rihgt"))
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert "rihgt" not in response.text


async def test_every_route_but_probes_and_metrics_asks_for_a_key() -> None:
    state = make_state(EchoEngine(always("x")), api_keys=("k",))
    paths = set(build_app(state).openapi()["paths"])
    async with client_of(state) as client:
        for path in paths | {"/v1/no-such-route", "/livez/", "/docs", "/openapi.json"}:
            answer = await client.http.request("GET", path)
            assert (answer.status_code != 401) == (path in OPEN_PATHS), path
    assert paths > OPEN_PATHS


async def test_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n")
    async with serving(EchoEngine(always("x")), api_key_file=file) as client:
        assert await status(client, bearer("old")) == 200
        replacement = tmp_path / "new"
        replacement.write_text("new\n")
        replacement.replace(file)
        assert await status(client, bearer("old")) == 401
        assert await status(client, bearer("new")) == 200


def test_file_that_goes_away_leaves_its_keys_and_an_empty_one_takes_them(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("key\n")
    keys = ApiKeys(file=file)
    file.unlink()
    assert keys.allow("key")
    file.write_text("")
    assert not keys.allow("key")
    assert keys.are_required


@pytest.mark.parametrize("content", [None, "", "# no key\n"])
def test_start_without_a_readable_key_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=str(file)):
        ApiKeys(file=file)


def certificate(folder: Path, authority: trustme.CA, name: str = "127.0.0.1") -> TlsSettings:
    issued = authority.issue_cert(name)
    settings = TlsSettings(cert_file=folder / "tls.crt", key_file=folder / "tls.key")
    issued.cert_chain_pems[0].write_to_path(settings.cert_file)
    issued.private_key_pem.write_to_path(settings.key_file)
    return settings


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_https_is_served_with_the_certificate_given(tmp_path: Path) -> None:
    authority = trustme.CA()
    engine = EchoEngine(always("x"))
    async with process(engine, tls=certificate(tmp_path, authority)) as server:
        url = str(server.http.base_url).replace("http:", "https:")
        async with httpx.AsyncClient(base_url=url, verify=trusting(authority)) as client:
            server.http = client
            answer = await server.until_status("/readyz", 200)
    assert answer.json()["status"] == "ok"


def test_renewed_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    tls = ServerTls(certificate(tmp_path, old))
    settings = certificate(tmp_path, new)
    os.utime(settings.cert_file, ns=(1, 1))
    os.utime(settings.key_file, ns=(2, 2))
    tls.reload_if_changed()
    handshake(tls.context, trusting(new))
    with pytest.raises(ssl.SSLError):
        handshake(tls.context, trusting(old))


def test_certificate_that_cannot_be_read_is_a_sentence_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.crt"):
        ServerTls(TlsSettings(cert_file=tmp_path / "tls.crt", key_file=tmp_path / "tls.key"))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Both sides of a TLS handshake in memory. Raises ssl.SSLError when it fails."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert sides[0].getpeercert()


async def test_body_that_does_not_come_is_given_up() -> None:
    engine = EchoEngine(always("x"))
    async with process(engine, body_timeout_s=0.2) as server:
        await server.until_status("/readyz", 200)
        host, port = server.http.base_url.host, server.http.base_url.port
        reader, writer = await asyncio.open_connection(host, port)
        headers = b"Host: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n"
        writer.write(b"POST /v1/completions HTTP/1.1\r\n" + headers + b"\r\n{")
        line = await asyncio.wait_for(reader.readline(), 20)
        writer.close()
    assert line.startswith(b"HTTP/1.1 408")


async def test_name_of_the_field_in_an_error_is_bounded_too() -> None:
    async with serving(EchoEngine(always("x"))) as client:
        error = await client.refused(CHAT, chat_body(**{"y" * 50_000: 1}))
    assert len(error["param"]) == MAX_PARAM_CHARS


async def test_body_nested_without_end_is_a_400() -> None:
    body = b'{"model": "echo", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    async with serving(EchoEngine(always("x"))) as client:
        error = await client.refused("/v1/completions", body)
    assert error["code"] == "invalid_json"


async def test_engine_that_dies_under_a_request_answers_503_with_retry_after() -> None:
    engine = EchoEngine(always("x"))
    engine.failure = "the engine has stopped"
    async with serving(engine) as client:
        response = await client.http.post(CHAT, json=chat_body())
    assert response.status_code == 503
    assert "retry-after" in response.headers


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nX-A: ", b"GET /"])
async def test_request_head_that_never_ends_is_cut_off(head: bytes) -> None:
    async with process(EchoEngine(always("x"))) as server:
        await server.until_status("/readyz", 200)
        host, port = server.http.base_url.host, server.http.base_url.port
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(head)
        for _ in range(64):
            writer.write(b"a" * 4096)
            await asyncio.sleep(0)
        try:
            answer = await asyncio.wait_for(reader.read(), 20)
        except ConnectionResetError:  # it came while we still wrote
            answer = b""
        writer.close()
        assert (await server.http.get("/livez")).status_code == 200
    assert answer.startswith(b"HTTP/1.1 400") or answer == b""


async def test_body_larger_than_the_heads_limit_is_read() -> None:
    async with process(EchoEngine(always("x"), max_model_len=300_000)) as server:
        await server.until_status("/readyz", 200)
        body = {"model": "echo", "prompt": "a" * 200_000, "max_tokens": 2}
        for _ in range(2):  # the second on the same connection
            assert (await server.http.post("/v1/completions", json=body)).status_code == 200


async def test_prompts_times_answers_are_bounded_together() -> None:
    engine = EchoEngine(always("x"))
    async with serving(engine) as client:
        body = {"model": "echo", "prompt": ["a"] * 20, "n": 100}
        error = await client.refused("/v1/completions", body)
    assert "2000 answers" in error["message"]
    assert engine.requests == []

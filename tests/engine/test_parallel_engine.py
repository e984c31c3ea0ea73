"""The end of an engine of two ranks on a CPU when a rank fails."""

import asyncio
import os
import re
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from tests.engine.gguf_files import EOS_ID, hf_weights, write_gguf
from tests.engine.rank0_child import config_of
from tests.engine.server_process import ServerProcess, serving_process
from tests.engine.test_server_life import free_port

from octavo_engine.core.in_process import build_engine
from octavo_engine.errors import RankFailed

LIMIT_S = 8.0
"""Long enough for a busy machine."""
CLIENT_LIMIT_S = 180.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", hf_weights())


def rank_pids(parent: int) -> list[int]:
    """Of the rank processes that `parent` has started."""
    tasks = Path(f"/proc/{parent}/task").iterdir()
    pids = [int(pid) for task in tasks for pid in content(task / "children").split()]
    return [pid for pid in pids if b"rank_process" in content(Path(f"/proc/{pid}/cmdline"))]


def content(path: Path) -> bytes:
    """Of a file of a process or a thread, which may be gone by now."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


async def test_a_rank_that_dies_while_it_loads_ends_the_start(model: Path) -> None:
    starting = asyncio.ensure_future(asyncio.to_thread(build_engine, config_of(model, 2)))
    known = set(rank_pids(os.getpid()))
    while not (new := set(rank_pids(os.getpid())) - known):
        assert not starting.done()
        await asyncio.sleep(0.01)
    (rank,) = new
    os.kill(rank, signal.SIGKILL)
    with pytest.raises(RankFailed, match=rf"rank 1 \(process {rank}\) has ended by signal 9"):
        await starting
    assert rank not in rank_pids(os.getpid())


BODY = {"model": "tiny", "prompt": "ab", "max_tokens": 240, "logit_bias": {str(EOS_ID): -100}}


@dataclass
class Asked:
    """Two clients and a prober, as a kubelet is one, of a server that is about to end."""

    url: str
    answers: dict[bool, httpx.Response] = field(default_factory=dict)
    """By whether it is streamed."""
    answered_s: list[float] = field(default_factory=list)
    probes: list[tuple[float, int | None]] = field(default_factory=list)
    """When each began, and its status; None: nobody listens any more."""

    def ask(self, stream: bool) -> None:
        body = {**BODY, "stream": stream}
        self.answers[stream] = httpx.post(
            f"{self.url}/v1/completions", json=body, timeout=CLIENT_LIMIT_S
        )
        self.answered_s.append(time.monotonic())

    def probe(self) -> None:
        """Until the clients are answered and nobody listens."""
        status: int | None = 200
        while status is not None or len(self.answered_s) < 2:
            began_s = time.monotonic()
            try:
                status = httpx.get(f"{self.url}/livez", timeout=CLIENT_LIMIT_S).status_code
            except httpx.TransportError:
                status = None
            self.probes.append((began_s, status))
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("sent", "limit_s", "reason"),
    [
        pytest.param(signal.SIGKILL, 300.0, r"rank 1 \(process {pid}\) has ended by signal 9"),
        pytest.param(signal.SIGSTOP, LIMIT_S, r"rank 1 (was silent|did not end step)"),
    ],
    ids=["killed", "stopped"],
)
def test_a_lost_rank_ends_all_requests_the_probe_and_the_server(
    sent: signal.Signals, limit_s: float, reason: str, model: Path
) -> None:
    options = ["--core-process", "--dtype", "float32"]
    options += ["--tensor-parallel-size", "2", "--rank-timeout", f"{limit_s:g}"]
    with serving_process(model, free_port(), *options) as server:
        server.wait_ready()
        (rank,) = rank_pids(server.core_pid())
        asked = Asked(server.url)
        warm = httpx.post(
            f"{server.url}/v1/completions", json=BODY | {"max_tokens": 4}, timeout=CLIENT_LIMIT_S
        )
        assert warm.status_code == 200
        os.kill(rank, signal.SIGSTOP)  # so that the requests are certainly under way
        threads = [
            threading.Thread(target=asked.ask, args=(True,)),
            threading.Thread(target=asked.ask, args=(False,)),
        ]
        for thread in threads:
            thread.start()
        if sent != signal.SIGSTOP:
            wait_in_flight(server, 2)
            os.kill(rank, sent)
        threads.append(threading.Thread(target=asked.probe))
        threads[-1].start()
        for thread in threads:
            thread.join(CLIENT_LIMIT_S)
        assert asked.answers[False].status_code == 503
        assert asked.answers[False].json()["error"]["code"] == "engine_dead"
        assert '"code":"engine_dead"' in asked.answers[True].text
        later = [status for at_s, status in asked.probes if at_s > min(asked.answered_s)]
        assert later
        assert set(later) <= {503, None}
        assert server.exit_code() == 1, server.log
        assert re.search(reason.format(pid=rank), server.log)
        if sent == signal.SIGSTOP:
            assert "rank_process.py" in server.log  # its stack
        wait_gone(rank)


def wait_gone(pid: int) -> None:
    deadline_s = time.monotonic() + CLIENT_LIMIT_S
    while content(Path(f"/proc/{pid}/cmdline")):  # that of a zombie is empty
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def wait_in_flight(server: ServerProcess, count: int) -> None:
    gauge = "octavo:http_requests_in_flight"
    deadline_s = time.monotonic() + CLIENT_LIMIT_S
    while True:
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        if any(line.startswith(gauge) and line.endswith(f" {count}.0") for line in lines):
            return
        assert time.monotonic() < deadline_s, lines
        time.sleep(0.05)

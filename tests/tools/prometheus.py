"""A real Prometheus for tests: Debian's own, fetched and unpacked without installing a service."""

import fcntl
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml
from tests.tools.smollm2 import cache_dir

START_LIMIT_S = 60


def prometheus_program() -> Path:
    """The installed one, else the one in the cache, fetched by apt when missing."""
    installed = shutil.which("prometheus")
    if installed is not None:
        return Path(installed)
    folder = cache_dir() / "tools" / "prometheus"
    program = folder / "usr" / "bin" / "prometheus"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.is_file():
            _fetch(folder)
    return program


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        fetch = ["apt-get", "download", "prometheus"]
        if subprocess.run(fetch, cwd=scratch, capture_output=True, check=False).returncode:
            # Without package lists, as on a fresh machine.
            subprocess.run(["apt-get", "update", "-q"], check=True, capture_output=True)
            subprocess.run(fetch, cwd=scratch, check=True, capture_output=True)
        (package,) = Path(scratch).glob("*.deb")
        subprocess.run(["dpkg", "-x", str(package), str(folder)], check=True)


class Prometheus:
    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url)

    def is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def query(self, expression: str) -> list[float]:
        """The values of an instant query. Raises AssertionError for one that is not valid."""
        answer = self._http.get("/api/v1/query", params={"query": expression})
        assert answer.status_code == 200, f"{expression}: {answer.text}"
        return [float(series["value"][1]) for series in answer.json()["data"]["result"]]

    def close(self) -> None:
        self._http.close()


@contextmanager
def scraping(targets: list[str], port: int, scratch: Path) -> Iterator[Prometheus]:
    """A Prometheus on loopback that scrapes each `host:port` every second."""
    settings = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "octavo", "static_configs": [{"targets": targets}]}],
    }
    config = scratch / "prometheus.yml"
    config.write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{port}"
    command = [
        str(prometheus_program()),
        f"--config.file={config}",
        f"--web.listen-address={address}",
    ]
    command.append(f"--storage.tsdb.path={scratch / 'data'}")
    log = scratch / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    client = Prometheus(f"http://{address}")
    try:
        deadline_s = time.monotonic() + START_LIMIT_S
        while not client.is_ready():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.1)
        yield client
    finally:
        client.close()
        process.kill()
        process.wait()

"""Two network namespaces with a cable between them: hosts for programs that speak over the network.

Needs root. They vanish with the processes that hold them, which end with this one.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

ADDRESSES = {"host0": "10.99.0.1", "host1": "10.99.0.2"}
"""By name. Nobody else is in these networks."""
_CABLE = "cable"


@contextmanager
def two_hosts(folder: Path) -> Iterator[list[list[str]]]:
    """The words before a command that make it run on the one host and on the other, where both know
    their names. folder: for a file that they read."""
    names = folder / "hosts"
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in ADDRESSES.items())]
    names.write_text("\n".join(lines) + "\n")
    with ExitStack() as stack:
        pids = [stack.enter_context(_namespaces(names)) for _ in ADDRESSES]
        hosts = [["nsenter", "--net", "--mount", f"--target={pid}"] for pid in pids]
        cable = ["type", "veth", "peer", "name", _CABLE, "netns", str(pids[1])]
        _run([*hosts[0], "ip", "link", "add", _CABLE, *cable])
        for host, address in zip(hosts, ADDRESSES.values(), strict=True):
            _run([*host, "ip", "address", "add", f"{address}/24", "dev", _CABLE])
            for device in ("lo", _CABLE):
                _run([*host, "ip", "link", "set", device, "up"])
        yield [[*host, f"--wd={Path.cwd()}"] for host in hosts]


@contextmanager
def _namespaces(names: Path) -> Iterator[int]:
    """The process that holds them."""
    # A name server that cannot be reached is waited for; without one nobody waits.
    mounts = f"mount --bind {names} /etc/hosts && mount --bind /dev/null /etc/resolv.conf"
    inside = f"{mounts} && echo made && exec cat"
    command = ["unshare", "--net", "--mount", "sh", "-c", inside]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"made\n"
            yield process.pid
        finally:
            process.kill()


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)

"""The sockets between ranks: one way each, without a limit, used by several threads for sending."""

import socket
import threading

import zmq

from octavo_engine.errors import ConfigError

LINGER_MS = 2000
"""Time for the last words to leave."""


class Sender:
    """The sending end of a pair, for any thread."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self.socket = context.socket(zmq.PUSH)
        self.socket.set_hwm(0)
        self.socket.linger = LINGER_MS
        self._lock = threading.Lock()

    def send(self, content: bytes) -> bool:
        """False where nobody is at the other end yet, or any more."""
        with self._lock:
            if self.socket.closed:
                return False
            try:
                self.socket.send(content, zmq.NOBLOCK)
            except zmq.Again:
                return False
        return True

    def close(self, linger_ms: int = LINGER_MS) -> None:
        with self._lock:
            self.socket.close(linger_ms)


def make_receiver(context: "zmq.Context[zmq.Socket[bytes]]") -> "zmq.Socket[bytes]":
    receiver = context.socket(zmq.PULL)
    receiver.set_hwm(0)
    return receiver


def bind(target: "zmq.Socket[bytes]", address: str, source: str) -> str:
    """Binds to a free port of this host's `address`, which `source` has told; returns the endpoint.
    Raises ConfigError."""
    try:
        family, number = resolve(address)
        target.setsockopt(zmq.IPV6, int(family == socket.AF_INET6))
        target.bind(f"tcp://{with_port(number, '*')}")
    except (OSError, zmq.ZMQError) as error:
        raise ConfigError(f"{source} {address!r} is not rank 0's own: {error}") from error
    endpoint = target.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.decode().rstrip("\0")


def connect(target: "zmq.Socket[bytes]", endpoint: str) -> None:
    """To what `bind` has returned."""
    target.setsockopt(zmq.IPV6, int("[" in endpoint))
    target.connect(endpoint)


def resolve(address: str) -> tuple[int, str]:
    """Its family and number, those of IPv4 where it has both. Raises OSError."""
    found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    family, _, _, _, target = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, str(target[0])


def with_port(address: str, port: int | str) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def address_towards(address: str) -> str:
    """This host's address on the way to another, which sees us under it. Sends nothing."""
    family, number = resolve(address)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((number, 9))
        own: str = probe.getsockname()[0]
    return own

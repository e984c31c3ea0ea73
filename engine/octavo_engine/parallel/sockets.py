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


def bind(target: "zmq.Socket[bytes]", address: str) -> str:
    """Binds to a free port of this host's `address`; returns the endpoint. Raises ConfigError."""
    try:
        target.bind(f"tcp://{socket.gethostbyname(address)}:*")
    except (OSError, zmq.ZMQError) as error:
        raise ConfigError(f"MASTER_ADDR {address!r} is not rank 0's own: {error}") from error
    endpoint = target.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.decode().rstrip("\0")


def address_towards(address: str) -> str:
    """This host's address on the way to another, which sees us under it. Sends nothing."""
    family, kind, protocol, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        own: str = probe.getsockname()[0]
    return own

"""A way between agents that a test can cut and block: they are told to `advertise` it instead of the
port where they listen."""

import contextlib
import random
import select
import socket
import threading
import time

_CHUNK = 16 * 1024  # so that little goes on of what is in the middle when it is blocked
_LOOK_S = 0.02
# Below those that the kernel gives to connections: an engine that restarts finds its port free.
_PORTS = range(20000, 32000)


def fixed_port() -> int:
    """One that nobody listens at."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Relay:
    """To one port of this host. An end of a connection that closes closes the other, also while
    nothing passes."""

    def __init__(self, to_port: int) -> None:
        self.connections = 0
        """That were made so far."""
        self._to_port = to_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._left: int | None = None  # bytes that still pass; None: all do
        self._blocked = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self) -> None:
        """All connections; new ones can be made."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            _shut(end)

    def block_after(self, count: int) -> None:
        """Nothing passes either way after about so many bytes. What comes then waits."""
        with self._lock:
            self._left = count
        self._blocked.clear()

    def wait_until_blocked(self, limit_s: float = 10.0) -> None:
        """Something waits to pass."""
        if not self._blocked.wait(limit_s):
            raise TimeoutError(f"fewer bytes than expected have come in {limit_s:.0f} s")

    def unblock(self) -> None:
        with self._lock:
            self._left = None

    def close(self) -> None:
        _shut(self._listener)
        self.cut()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to_port), 2)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
                self.connections += 1
            for source, sink in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (chunk := source.recv(_CHUNK)) and self._may_pass(len(chunk), source, sink):
                sink.sendall(chunk)
        with self._lock:
            self._open -= {source, sink}
        for end in (source, sink):
            _shut(end)

    def _may_pass(self, count: int, *ends: socket.socket) -> bool:
        """Waits; False: an end has closed meanwhile."""
        while not self._take(count):
            self._blocked.set()
            poll = select.poll()
            for end in ends:
                poll.register(end, select.POLLRDHUP)
            if poll.poll(0):
                return False
            time.sleep(_LOOK_S)
        return True

    def _take(self, count: int) -> bool:
        with self._lock:
            if self._left is None:
                return True
            if self._left <= 0:
                return False
            self._left -= count
            return True


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)

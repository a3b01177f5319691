"""Metadata between agents by address: a small listener, and requests to that of another agent.

One request a connection: a header, a payload, and the answer. Nobody is authenticated, so the
listener is on loopback unless KVXFER_LISTEN names another host; what is not a request is answered
by closing, and nobody holds up anybody else for more than a few seconds.
"""

import logging
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Protocol

from . import environment
from .reach import REMEDY

logger = logging.getLogger("kvxfer.compat.nixl")

_HEADER = struct.Struct("<8sBQ")  # magic, command or answer, bytes of the payload
_MAGIC = b"kvxnixl?"
LOAD, FETCH, REMOVE, DONE, REFUSED = range(1, 6)

_REQUEST_SECONDS = 5.0  # for all of one request
_CONNECT_SECONDS = 2.0
_MOST_AT_ONCE = 16
_MOST_BYTES = 32 << 20  # of one payload: metadata of as many ranges as an agent may have
_MOST_BYTES_AT_ONCE = 64 << 20  # of all connections to one listener


class Known(Protocol):
    """What the exchange asks of its agent. Any thread."""

    name: str

    def metadata(self) -> bytes: ...
    def load(self, data: bytes) -> str: ...
    def remove(self, name: str) -> bool: ...


def _send(sock: socket.socket, kind: int, payload: bytes) -> None:
    if len(payload) > _MOST_BYTES:
        raise ValueError(f"{len(payload)} bytes of metadata; expected at most {_MOST_BYTES}")
    sock.sendall(_HEADER.pack(_MAGIC, kind, len(payload)) + payload)


class _ByteBudget:
    """What connections hold at the same time, which is bounded. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """ValueError: there is not as much."""
        with self._lock:
            if size > self._left:
                raise ValueError("too much has come at once")
            self._left -= size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._left += size


class _Share:
    """One connection's part of the room, given back at the end of ``with``."""

    def __init__(self, budget: _ByteBudget) -> None:
        self._budget = budget
        self._size = 0

    def take(self, size: int) -> None:
        self._budget.take(size)
        self._size += size

    def __enter__(self) -> "_Share":
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.give_back(self._size)


def _receive_all(sock: socket.socket, size: int, until: float, share: _Share) -> bytes:
    parts = []
    while size > 0:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("it took too long")
        sock.settimeout(left)
        part = sock.recv(min(size, 1 << 20))
        if not part:
            raise ConnectionError("the other side closed")
        # As it comes: who only promises many bytes takes no room of others.
        share.take(len(part))
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _receive(sock: socket.socket, share: _Share) -> tuple[int, bytes]:
    """ValueError: not of this protocol; OSError."""
    until = time.monotonic() + _REQUEST_SECONDS
    magic, kind, size = _HEADER.unpack(_receive_all(sock, _HEADER.size, until, share))
    if magic != _MAGIC or size > _MOST_BYTES:
        raise ValueError("not a request of kvxfer's NIXL drop-in")
    return kind, _receive_all(sock, size, until, share)


class Listener:
    """Answers requests until it is stopped. RuntimeError: the port is taken."""

    def __init__(self, known: Known, port: int) -> None:
        self._known = known
        self._free = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._budget = _ByteBudget(_MOST_BYTES_AT_ONCE)
        self._owner = os.getpid()
        self._stopped = False
        host = environment.listen_host()
        try:
            self._socket = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            raise RuntimeError(f"the listener cannot bind {host}:{port}: {error}") from error
        self.port: int = self._socket.getsockname()[1]
        logger.info("agent %s listens for metadata at %s:%d", known.name, host, self.port)
        self._thread = threading.Thread(target=self._accept, name="kvxfer-nixl-listen", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._stopped:
            try:
                client, _ = self._socket.accept()
            except OSError:
                if not self._stopped:
                    time.sleep(0.05)  # out of descriptors, for one
                continue
            self._free.acquire()
            try:
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()
            except RuntimeError:  # the interpreter ends
                client.close()
                return

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, _Share(self._budget) as share:
                kind, payload = _receive(client, share)
                client.settimeout(_REQUEST_SECONDS)
                try:
                    _send(client, DONE, self._act(kind, payload))
                except (OSError, ValueError):
                    raise
                except Exception as error:  # NIXL's, with its reason
                    logger.warning("a request to the listener was refused: %s", error)
                    _send(client, REFUSED, str(error).encode())
        except (OSError, ValueError) as error:
            logger.debug("a connection to the listener ended: %s", error)
        finally:
            self._free.release()

    def _act(self, kind: int, payload: bytes) -> bytes:
        if kind == LOAD:
            return self._known.load(payload).encode()
        if kind == FETCH:
            return self._known.metadata()
        if kind == REMOVE:
            self._known.remove(payload.decode())
            return b""
        raise ValueError(f"no command {kind}")

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        if os.getpid() != self._owner:
            # A forked child shares the socket: to shut it down would stop its parent's listener.
            self._socket.close()
            return
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept
        except OSError:
            pass
        self._socket.close()
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)


class Courier:
    """Takes requests to listeners, one after another, in a thread of its own. Failures are logged,
    for nobody waits."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._owner = os.getpid()

    def send(self, host: str, port: int, kind: int, payload: bytes) -> None:
        """Returns at once."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kvxfer-nixl-courier", daemon=True
                )
                self._thread.start()
        self._jobs.put(lambda: self._deliver(host, port, kind, payload))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:
                logger.error("agent %s, metadata: %s", self._known.name, error)

    def _deliver(self, host: str, port: int, kind: int, payload: bytes) -> None:
        try:
            with socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as sock:
                sock.settimeout(_REQUEST_SECONDS)
                _send(sock, kind, payload)
                answer, text = _receive(sock, _Share(_ByteBudget(2 * _MOST_BYTES)))
        except (OSError, OverflowError, ValueError) as error:
            logger.error(
                "the listener at %s:%s was not reached: %s (%s)", host, port, error, REMEDY
            )
            return
        if answer != DONE:
            what = text.decode(errors="replace")
            logger.error("the listener at %s:%s refused: %s", host, port, what)
        elif kind == FETCH:
            self._known.load(text)

    def stop(self) -> None:
        if os.getpid() != self._owner:  # the thread is the parent's
            return
        with self._lock:
            thread = self._thread
        self._jobs.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

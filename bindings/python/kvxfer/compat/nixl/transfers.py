"""Transfers: made once, posted as often as one likes, looked at until they have ended."""

import logging
import threading
import time
from typing import Any

from kvxfer import _errors, _kvxfer

from .errors import (
    from_kvxfer,
    nixl_error,
    nixlInvalidParamError,
    nixlNotPostedError,
    nixlRepostActiveError,
)
from .memory import HOST, LocalMemory
from .native import Native
from .prepared import Pairs

logger = logging.getLogger("kvxfer.compat.nixl")

# A cancelled transfer is waited for as long, in seconds: longer than kvxfer's cancel_grace.
CANCEL_PATIENCE = 1.5


class nixlXferTelemetry(Native):
    """Of a transfer that is done; microseconds, as integers."""

    __slots__ = ("_kvx_values",)

    def __init__(self) -> None:
        self._kvx_values = (0, 0, 0, 0, 0)
        Native.__init__(self)

    @classmethod
    def _kvx_of(cls, *values: int) -> "nixlXferTelemetry":
        """In the order of the properties."""
        new = cls()
        new._kvx_values = values
        return new

    startTime = property(lambda self: self._kvx_values[0], doc="Of posting, monotonic clock.")
    postDuration = property(lambda self: self._kvx_values[1], doc="What posting took.")
    xferDuration = property(lambda self: self._kvx_values[2], doc="From posting to the end.")
    totalBytes = property(lambda self: self._kvx_values[3])
    descCount = property(lambda self: self._kvx_values[4], doc="After merging.")


class Transfer:
    """One request of NIXL's. Thread-safe; calls on one are done one by one."""

    def __init__(
        self, write: bool, peer: str, generation: int, pairs: Pairs, message: bytes, merge: bool
    ) -> None:
        """``peer``: "" for a copy within this agent. ``merge``: for descCount only."""
        self.write = write
        self.peer = peer
        self.generation = generation
        self.pairs = pairs
        self.hint = ""
        """What may be behind its failure, for the error."""
        self._message = message
        self._merge = merge
        self._lock = threading.RLock()
        self._active: Any = None  # kvxfer's transfer
        self._posted = False
        self._error: Exception | None = None  # kvxfer's
        self._start = 0.0
        self._post_seconds = 0.0
        self._copy_seconds = 0.0

    def check_can_post(self) -> None:
        """nixlRepostActiveError: still under way."""
        if self.is_under_way():
            raise nixl_error(nixlRepostActiveError, "the transfer is still under way")

    def take_message(self, message: bytes) -> bytes:
        """What to tell the target this time: ``message``, which stays for the next, or the last."""
        with self._lock:
            self._message = message or self._message
            return self._message

    def post(self, agent: Any, message: bytes | None, deadline: float) -> None:
        """NIXL's error where kvxfer refuses it; as its end."""
        with self._lock:
            self._begin()
            try:
                self._active = self._move(agent, self.pairs, message, deadline)
            except _errors.Error as error:
                self._error = error
                self._posted = True
                raise from_kvxfer(error, self.hint) from error
            finally:
                self._post_seconds = time.monotonic() - self._start
            self._posted = True

    def _begin(self) -> None:
        # Whatever ends the posting early, Ctrl-C for one, leaves a transfer that was not posted.
        self.check_can_post()
        self._posted = False
        self._error = None
        self._active = None
        self._start = time.monotonic()

    def refuse(self, error: Exception) -> None:
        """``error``, kvxfer's, is its end: what goes before it was not sent."""
        with self._lock:
            self._begin()
            self._error = error
            self._posted = True

    def _move(self, agent: Any, pairs: Pairs, message: bytes | None, deadline: float) -> Any:
        call = agent.write if self.write else agent.read
        try:
            return call(
                self.peer, pairs.local, pairs.remote, notification=message, deadline=deadline
            )
        except _errors.InvalidArgument:
            # NIXL lets destinations repeat; kvxfer refuses that, for the order would be chance.
            single = pairs.without_repeats(to_local=not self.write)
            if single is None:
                raise
        return call(self.peer, single.local, single.remote, notification=message, deadline=deadline)

    def copy(self, memory: LocalMemory) -> None:
        """Within this process; done on return. nixlInvalidParamError: some of it is not registered
        any more."""
        pairs = self.pairs
        to, source = (pairs.remote, pairs.local) if self.write else (pairs.local, pairs.remote)
        # Deregistration waits for the copy: the memory may be unmapped right after it.
        with self._lock, memory.in_use:
            self._begin()
            if not all(map(memory.coverage(HOST).covers, pairs.rows())):
                raise nixl_error(
                    nixlInvalidParamError, "memory of the transfer was deregistered meanwhile"
                )
            _kvxfer.copy_blocks(to, source)
            self._copy_seconds = self._post_seconds = time.monotonic() - self._start
            self._posted = True

    def is_done(self, drive: float = 0.0) -> bool:
        """False: under way, after at most ``drive`` seconds in which the caller's thread moved it
        on. nixlNotPostedError; else the error that it ended with."""
        with self._lock:
            if not self._posted:
                raise nixl_error(nixlNotPostedError, "the transfer was not posted yet")
            if self._error is None and self._active is not None:
                ended = self._active._drive(drive) if drive > 0 else self._active.done()
                if not ended:
                    return False
                self._error = self._active.error
                if self._error is not None:
                    logger.warning("transfer to agent %s ended: %s", self.peer, self._error)
            if self._error is None:
                return True
            raise from_kvxfer(self._error, self.hint) from self._error

    def path(self) -> str:
        """The kvxfer backend that carried it; empty: none."""
        active = self._active
        return active.stats.path if active is not None else ""

    def is_under_way(self) -> bool:
        active = self._active
        return active is not None and not active.done()

    def cancel(self, wait: bool) -> None:
        """Nothing, where it has ended. nixlRepostActiveError: bytes of it may still move, after
        CANCEL_PATIENCE."""
        active = self._active
        if active is None:
            return
        if active.done():
            # Its error was told; NIXL's callers do not expect another one here.
            if active.quarantined and wait:
                logger.warning("agent %s has not let go of a transfer that failed", self.peer)
            return
        active.cancel()
        if not wait:
            return
        try:
            active.wait_quiet(CANCEL_PATIENCE)
        except _errors.TimedOut as error:
            raise nixl_error(
                nixlRepostActiveError,
                f"the transfer was cancelled; agent {self.peer!r} has not let go of it: {error}",
            ) from error
        except _errors.Error as error:
            logger.debug("a transfer to agent %s was released: %s", self.peer, error)

    def telemetry(self) -> nixlXferTelemetry:
        """Zeros while it is under way, as nothing is known. nixlNotPostedError; or its error."""
        if not self.is_done():
            return nixlXferTelemetry()
        active = self._active
        seconds = self._copy_seconds if active is None else active.stats.total
        # kvxfer's clock starts within the call that posts.
        seconds = max(seconds, self._post_seconds)
        # NIXL's clock ticks in microseconds: what was done took at least one.
        return nixlXferTelemetry._kvx_of(
            int(self._start * 1e6),
            max(1, int(self._post_seconds * 1e6)),
            max(1, int(seconds * 1e6)),
            self.pairs.bytes,
            self.pairs.merged_count() if self._merge else len(self.pairs),
        )

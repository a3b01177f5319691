"""Agents of other engines, found by the address and incarnation that a reference names. Finding out
takes a thread of its own each time, so that an engine that does not answer delays nobody but the
requests that are for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import kvxfer
from kvxfer.vllm.reference import Worker
from kvxfer.vllm.settings import is_loopback
from kvxfer.vllm.stats import Stats

_MAX_UNDER_WAY = 64
_MAX_KNOWN = 1024
# A connection that was cut heals by itself; an engine that is gone for good is forgotten.
_FORGET_LOST_S = 600.0


class CannotMeet(Exception):
    """Why a peer cannot be reached, and what to do."""


@dataclass
class _Attempt:
    """To find out about one worker, for all who wait for it. Who comes when it has failed makes
    another, which keeps this one: those who came before may not have asked yet."""

    before: _Attempt | None = None
    found: Future[str] = field(default_factory=Future)
    ended: float = 0.0  # written before it is done
    counted: bool = False

    @property
    def error(self) -> BaseException | None:
        return self.found.exception() if self.found.done() else None

    @property
    def name(self) -> str | None:
        return self.found.result() if self.found.done() and self.error is None else None

    def succeed(self, name: str) -> None:
        self.ended = time.monotonic()
        self.found.set_result(name)

    def fail(self, error: Exception) -> None:
        self.ended = time.monotonic()
        self.found.set_exception(error)


class Peers:
    """Used by the thread of the engine alone."""

    def __init__(self, agent: kvxfer.Agent, timeout: float, stats: Stats) -> None:
        self._agent = agent
        self._stats = stats
        self._timeout = timeout
        self._known: dict[Worker, _Attempt] = {}
        self._lost: dict[str, float] = {}  # since when, by name

    def meet(self, workers: Sequence[Worker], since: float) -> list[str] | None:
        """The names of their agents; None: not yet. ``since``: from when on the caller has waited
        for them (time.monotonic()). CannotMeet: an attempt has failed since then; another is made
        only for who comes after it, or those who wait together would fail one after the other."""
        names = [self._meet(worker, since) for worker in workers]
        found = [name for name in names if name is not None]
        return found if len(found) == len(names) else None

    def name(self, worker: Worker) -> str | None:
        """Of one that was met."""
        known = self._known.get(worker)
        return None if known is None else known.name

    def lost(self, name: str) -> None:
        self._lost.setdefault(name, time.monotonic())

    def back(self, name: str) -> None:
        self._lost.pop(name, None)

    def sweep(self) -> None:
        """Removes agents that were lost long ago; they are met anew, should they be named again."""
        now = time.monotonic()
        for name in [each for each, since in self._lost.items() if now > since + _FORGET_LOST_S]:
            del self._lost[name]
            for worker in [each for each in self._known if self.name(each) == name]:
                del self._known[worker]
            try:
                self._agent.remove_peer(name)
            except kvxfer.Error:
                pass  # it was removed before

    def _meet(self, worker: Worker, since: float) -> str | None:
        known = self._known.get(worker)
        if known is None or (known.error is not None and known.ended < since):
            known = self._begin(worker, known)
            if known is None:
                return None
            self._known[worker] = known
        if known.name is not None:
            return known.name
        for attempt in (known, known.before):
            if attempt is not None and attempt.error is not None and attempt.ended >= since:
                self._count(attempt)
                raise CannotMeet(str(attempt.error))
        return None

    def _count(self, failed: _Attempt) -> None:
        if not failed.counted:
            failed.counted = True
            self._stats.count("failed_meetings")

    def _begin(self, worker: Worker, before: _Attempt | None) -> _Attempt | None:
        """None: as many others are being met as may be at once."""
        if sum(not each.found.done() for each in self._known.values()) >= _MAX_UNDER_WAY:
            return None
        self._forget_what_is_over(worker.address)
        if before is not None:
            before.before = None
        attempt = _Attempt(before)

        def run() -> None:
            try:
                attempt.succeed(self._introduce(worker))
            except Exception as error:
                attempt.fail(error)

        threading.Thread(target=run, name="kvxfer-introduction", daemon=True).start()
        return attempt

    def _forget_what_is_over(self, address: str) -> None:
        """Earlier lives at this address; and of failures more than are of use."""
        for old, attempt in list(self._known.items()):
            failed = attempt.error is not None
            if attempt.found.done() and (
                old.address == address or (failed and len(self._known) > _MAX_KNOWN)
            ):
                del self._known[old]

    def _introduce(self, worker: Worker) -> str:
        try:
            name = self._agent.add_peer(kvxfer.fetch_metadata(worker.address, self._timeout))
            incarnation = self._agent.explain(name).incarnation
        except kvxfer.Error as error:
            hint = (
                ": that is an address of its own host only; set VLLM_HOST_IP there"
                if is_loopback(worker.address.rpartition(":")[0].strip("[]"))
                else ""
            )
            raise CannotMeet(f"the engine's worker at {worker.address}: {error}{hint}") from error
        if incarnation != worker.incarnation:
            raise CannotMeet(
                f"the engine's worker at {worker.address} has been restarted since this reference "
                "was made: what it refers to is gone"
            )
        return name

"""Agents of other engines, found by the address and incarnation that a reference names. Finding out
takes a thread of its own each time, so that an engine that does not answer delays nobody but the
requests that are for it. Where descriptors run short, agents that nothing is under way with are let go
of, and found anew when they are named again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import kvxfer
from kvxfer.vllm.addresses import is_loopback
from kvxfer.vllm.descriptors import HINT, PER_PEER, RESERVE, free_descriptors
from kvxfer.vllm.reference import Worker
from kvxfer.vllm.stats import Stats

_MAX_UNDER_WAY = 64
_MAX_KNOWN = 1024
# A connection that was cut heals by itself; an engine that is gone for good is forgotten.
_FORGET_LOST_S = 600.0
# One that was asked for less long ago may be about to be used, or may not have connected yet.
_IDLE_S = 0.5
_LET_GO_AT_ONCE = 8


class CannotMeet(Exception):
    """Why a peer cannot be reached, and what to do."""


class OutOfDescriptors(CannotMeet):
    """This engine has no more of them."""


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

    def __init__(
        self,
        agent: kvxfer.Agent,
        timeout: float,
        stats: Stats,
        busy: Callable[[], set[str]] = set,
    ) -> None:
        """``busy``: the names of agents that something is under way with."""
        self._busy = busy
        self._used: dict[str, float] = {}  # when it was last asked for, by name
        self._agent = agent
        self._stats = stats
        self._timeout = timeout
        self._known: dict[Worker, _Attempt] = {}
        self._under_way: list[_Attempt] = []  # and some that have ended since
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
            self._remove(name)

    def let_idle_go(self, number: int = _LET_GO_AT_ONCE) -> int:
        """Removes up to so many agents that nothing is under way with, those first that were not used
        for longest; how many."""
        busy, now = self._busy(), time.monotonic()
        met = [(each.name, each.ended) for each in self._known.values() if each.name is not None]
        since = {name: max(ended, self._used.get(name, ended)) for name, ended in met}
        idle = [name for name in since if name not in busy and now > since[name] + _IDLE_S]
        idle = sorted(idle, key=since.__getitem__)[:number]
        for name in idle:
            self._remove(name)
        return len(idle)

    def _remove(self, name: str) -> None:
        self._lost.pop(name, None)
        self._used.pop(name, None)
        for worker in [each for each in self._known if self.name(each) == name]:
            del self._known[worker]
        try:
            self._agent.remove_peer(name)
        except kvxfer.Error:
            pass  # it was removed before

    def is_new(self, worker: Worker, since: float) -> bool:
        """Whether to meet it, as ``meet`` does, takes an attempt that has not begun."""
        known = self._known.get(worker)
        return known is None or (known.error is not None and known.ended < since)

    def _meet(self, worker: Worker, since: float) -> str | None:
        known = self._known.get(worker)
        if known is None or self.is_new(worker, since):
            known = self._begin(worker, known)
            if known is None:
                return None
            self._known[worker] = known
        if known.name is not None:
            self._used[known.name] = time.monotonic()
            return known.name
        if isinstance(known.error, OutOfDescriptors) and self.let_idle_go():
            self._count(known)
            del self._known[worker]  # once more, with those that have come free
            return None
        for attempt in (known, known.before):
            if attempt is not None and attempt.error is not None and attempt.ended >= since:
                self._count(attempt)
                raise CannotMeet(str(attempt.error))
        return None

    def _count(self, failed: _Attempt) -> None:
        if not failed.counted:
            failed.counted = True
            self._stats.count("failed_meetings")
            if isinstance(failed.error, OutOfDescriptors):
                self._stats.count("exhausted")

    def _begin(self, worker: Worker, before: _Attempt | None) -> _Attempt | None:
        """None: as many others are being met as may be at once."""
        self._under_way = [each for each in self._under_way if not each.found.done()]
        under_way = len(self._under_way)
        if under_way >= _MAX_UNDER_WAY or not self._has_descriptors(under_way):
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

        try:
            threading.Thread(target=run, name="kvxfer-introduction", daemon=True).start()
        except RuntimeError as error:  # the process has as many threads as it may
            attempt.fail(
                CannotMeet(
                    f"the engine's worker at {worker.address}: {error}: this engine has as many "
                    "threads as it may: raise its limit (ulimit -u, TasksMax or pids.max)"
                )
            )
        self._under_way.append(attempt)
        return attempt

    def _has_descriptors(self, under_way: int) -> bool:
        """For one more. False: some will come free soon."""
        now = time.monotonic()
        new = sum(now < each.ended + 1 and each.name is not None for each in self._known.values())
        short = (under_way + new + 1) * PER_PEER + RESERVE - free_descriptors()
        if short <= 0:
            return True
        let_go = self.let_idle_go(-(-short // PER_PEER))
        return let_go == under_way == new == 0  # nothing to wait for: the attempt says what is wrong

    def _forget_what_is_over(self, address: str) -> None:
        """Earlier lives at this address; and of failures more than are of use."""
        for old, attempt in list(self._known.items()):
            too_many = len(self._known) > _MAX_KNOWN
            if old.address != address and not too_many:
                continue
            if attempt.error is not None or (old.address == address and attempt.found.done()):
                del self._known[old]
                self._used.pop(attempt.name or "", None)

    def _introduce(self, worker: Worker) -> str:
        try:
            name = self._agent.add_peer(kvxfer.fetch_metadata(worker.address, self._timeout))
            incarnation = self._agent.explain(name).incarnation
        except kvxfer.ResourceExhausted as error:
            text = f"the engine's worker at {worker.address}: {error}: {HINT}"
            raise OutOfDescriptors(text) from error
        except kvxfer.Error as error:
            hint = (
                ": that address is of its own host alone; if it runs on another, set VLLM_HOST_IP there"
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

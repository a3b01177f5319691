"""Prefill, pull: blocks are kept under a lease of this worker's agent until decode has read them. Each
cache has a lease of its own: a part."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import kvxfer
from kvxfer.vllm.caches import RegisteredCaches
from kvxfer.vllm.early_releases import EarlyReleases
from kvxfer.vllm.log import logger, shown
from kvxfer.vllm.stats import Stats
from kvxfer.vllm.step import Held


_MAX_ENDED = 4096
_MAX_REFUSED = 4096
# vLLM's null block, which no request's tokens are in.
_NOTHING = (0,)


def part_of(lease: str, cache: int) -> str:
    """The lease of one cache's blocks."""
    return f"{lease}/{cache}"


@dataclass
class _Lease:
    request: str
    parts: list[str]  # that were granted
    open: int  # of them
    known: bool = True  # to somebody: the scheduler hears of its end


@dataclass
class _Refused:
    """A part that could not be leased: those who ask for it are to hear so."""

    cache: str
    contents: str
    until: float


class Holding:
    """``renew`` and ``give_back`` may be called by any thread, the rest by the engine's."""

    def __init__(
        self, agent: kvxfer.Agent, seconds: float, stats: Stats, early: EarlyReleases
    ) -> None:
        self._agent = agent
        self._seconds = seconds
        self._stats = stats
        self._early = early
        self._leases: dict[str, _Lease] = {}
        self._over: OrderedDict[str, None] = OrderedDict()  # leases that ended lately
        self._refused: OrderedDict[str, _Refused] = OrderedDict()  # by part
        self._ended: set[str] = set()
        self.caches: RegisteredCaches | None = None

    def has_any(self) -> bool:
        return bool(self._leases)

    def hold(self, held: Held) -> None:
        parts: list[str] = []
        names = self._parts(held)
        try:
            for part, (cache, ids) in names.items():
                self._agent.lease_blocks(cache, part, ids, self._seconds, contents=held.contents)
                parts.append(part)
        except (kvxfer.Error, ValueError) as error:
            logger.error("kvxfer: blocks of %s cannot be leased: %s", held.request, shown(error))
            self._refuse({part: names[part][0] for part in names if part not in parts}, held)
        if not parts:
            self._end(held.lease, held.request)
            self._early.take(held.lease)
            return
        self._leases[held.lease] = _Lease(held.request, parts, open=len(parts))
        # Those that wait for it were answered when it was granted.
        if self._early.take(held.lease) or len(parts) < len(names):
            self.give_back(held.lease)

    def _parts(self, held: Held) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Of the caches of this worker, their names and blocks."""
        assert self.caches is not None
        return {
            part_of(held.lease, number): (cache.name, held.groups[cache.group].ids)
            for number, cache in enumerate(self.caches.caches)
            if self.caches.shards[number].layers
        }

    def drop(self, lease: str) -> None:
        """Nobody has heard of it."""
        known = self._leases.get(lease)
        if known is not None:
            known.known = False
            self.give_back(lease)

    def revoke(self, lease: str) -> None:
        """Whoever reads is refused, and when this returns the blocks may be written."""
        known = self._leases.get(lease)
        for part in known.parts if known is not None else ():
            with contextlib.suppress(kvxfer.Error):  # it has ended
                self._agent.revoke_lease(part)

    def _refuse(self, parts: Mapping[str, str], held: Held) -> None:
        """``parts``: the names of their caches. Whoever waits for a lease hears of it when it is granted,
        and whoever comes later hears that it has ended: so it is granted for a block that no reference
        names, and released."""
        until = time.monotonic() + self._seconds
        for part, cache in parts.items():
            self._refused[part] = _Refused(cache, held.contents, until)
            if len(self._refused) > _MAX_REFUSED:
                self._refused.popitem(last=False)
        self._answer_refused()

    def _answer_refused(self) -> None:
        """Where as many leases are held as there may be, this has to wait for the end of one."""
        while self._refused:
            name, part = next(iter(self._refused.items()))
            try:
                if time.monotonic() < part.until:
                    self._agent.lease_blocks(
                        part.cache, name, _NOTHING, self._seconds, contents=part.contents
                    )
                    self._agent.release_lease(name)
            except kvxfer.ResourceExhausted:
                return
            except kvxfer.Error as error:  # its name was used before: whoever asks is answered
                logger.debug("kvxfer: %s cannot be refused: %s", shown(name), shown(error))
            del self._refused[name]

    def renew(self, lease: str) -> bool:
        """False: this worker holds no such lease."""
        known = self._leases.get(lease)
        if known is None:
            return False
        for part in known.parts:
            with contextlib.suppress(kvxfer.Error):  # it has ended meanwhile
                self._agent.renew_lease(part, self._seconds)
        return True

    def give_back(self, lease: str) -> bool:
        """False: this worker does not hold it, and has not held it lately."""
        known = self._leases.get(lease)
        if known is None:
            return lease in self._over
        for part in known.parts:
            with contextlib.suppress(kvxfer.Error):
                self._agent.release_lease(part)
        return True

    def ended(self, part: str, how: str) -> None:
        lease = part.rpartition("/")[0]
        known = self._leases.get(lease)
        if known is None:
            return
        known.open -= 1
        if how == "expired":
            logger.warning(
                "kvxfer: nobody fetched %s (cache %s of request %s) in time",
                *(shown(each) for each in (lease, part.rpartition("/")[2], known.request)),
            )
        if known.open == 0:
            self._end(lease, known.request if known.known else "")
            if how == "expired":
                self._stats.count("expired_leases")

    def _end(self, lease: str, request: str) -> None:
        """For other threads it is over before it is held no more. ``request``: empty where the scheduler
        does not wait for it."""
        self._over[lease] = None
        if len(self._over) > _MAX_ENDED:
            self._over.popitem(last=False)
        self._leases.pop(lease, None)
        if request:
            self._ended.add(request)

    def take_ended(self) -> set[str]:
        self._answer_refused()
        ended, self._ended = self._ended, set()
        return ended

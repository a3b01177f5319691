"""Prefill, pull: blocks are kept under a lease of this worker's agent until decode has read them. Each
cache has a lease of its own: a part."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import kvxfer
from kvxfer.vllm.caches import RegisteredCaches
from kvxfer.vllm.early_releases import EarlyReleases
from kvxfer.vllm.log import logger, shown
from kvxfer.vllm.stats import Stats
from kvxfer.vllm.step import Held


_T = TypeVar("_T")
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
    confirmed: bool  # the scheduler hears of its end


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
        # Of those that ended before the scheduler confirmed them, the requests.
        self._unconfirmed: OrderedDict[str, str] = OrderedDict()
        self._revoked: OrderedDict[str, None] = OrderedDict()  # before they were granted
        self._refused: OrderedDict[str, _Refused] = OrderedDict()  # by part
        self._ended: set[str] = set()
        self.caches: RegisteredCaches | None = None

    def has_any(self) -> bool:
        return bool(self._leases)

    def hold(self, held: Held) -> None:
        parts: list[str] = []
        names = self._parts(held)
        if held.lease in self._revoked:
            del self._revoked[held.lease]
            self._end(held.lease, held.request, held.confirmed)
            return
        try:
            for part, (cache, ids) in names.items():
                self._agent.lease_blocks(cache, part, ids, self._seconds, contents=held.contents)
                parts.append(part)
        except (kvxfer.Error, ValueError) as error:
            logger.error("kvxfer: blocks of %s cannot be leased: %s", held.request, shown(error))
            self._refuse({part: names[part][0] for part in names if part not in parts}, held)
        if not parts:
            self._end(held.lease, held.request, held.confirmed)
            self._early.take(held.lease)
            return
        self._leases[held.lease] = _Lease(held.request, parts, len(parts), held.confirmed)
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

    def confirm(self, lease: str) -> None:
        """From now on the scheduler waits for its end, or has done so already."""
        known = self._leases.get(lease)
        if known is not None:
            known.confirmed = True
        request = self._unconfirmed.pop(lease, None)
        if request is not None:
            self._ended.add(request)

    def drop(self, lease: str) -> None:
        """Nobody has heard of it, and nobody waits for its end."""
        self._unconfirmed.pop(lease, None)
        self.give_back(lease)

    def revoke(self, lease: str) -> None:
        """Whoever reads is refused, and when this returns the blocks may be written. One that is not
        granted yet ends when it would be."""
        known = self._leases.get(lease)
        if known is None and lease not in self._over:
            _remember(self._revoked, lease, None)
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
        if known is None or part not in known.parts:
            return
        known.open -= 1
        if how == "expired":
            logger.warning(
                "kvxfer: nobody fetched %s (cache %s of request %s) in time",
                *(shown(each) for each in (lease, part.rpartition("/")[2], known.request)),
            )
        if known.open == 0:
            self._end(lease, known.request, known.confirmed)
            if how == "expired":
                self._stats.count("expired_leases")

    def _end(self, lease: str, request: str, confirmed: bool) -> None:
        """For other threads it is over before it is held no more."""
        _remember(self._over, lease, None)
        self._leases.pop(lease, None)
        if confirmed:
            self._ended.add(request)
        else:
            _remember(self._unconfirmed, lease, request)

    def take_ended(self) -> set[str]:
        self._answer_refused()
        ended, self._ended = self._ended, set()
        return ended


def _remember(lately: OrderedDict[str, _T], lease: str, what: _T) -> None:
    lately[lease] = what
    if len(lately) > _MAX_ENDED:
        lately.popitem(last=False)

"""Prefill, pull: blocks are kept under a lease of this worker's agent until decode has read them."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

import kvxfer
from kvxfer.vllm.caches import cache_name
from kvxfer.vllm.early_releases import EarlyReleases
from kvxfer.vllm.log import logger, shown
from kvxfer.vllm.stats import Stats
from kvxfer.vllm.step import Held


_MAX_ENDED = 4096
_MAX_REFUSED = 4096
# vLLM's null block, which no request's tokens are in.
_NOTHING = (0,)


def part_of(lease: str, group: int) -> str:
    """The lease of one group's blocks."""
    return f"{lease}/{group}"


@dataclass
class _Lease:
    request: str
    granted: int  # parts
    open: int  # of them


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

    def has_any(self) -> bool:
        return bool(self._leases)

    def hold(self, held: Held) -> None:
        granted = 0
        try:
            for index, group in enumerate(held.groups):
                name = part_of(held.lease, index)
                self._agent.lease_blocks(
                    cache_name(index), name, group.ids, self._seconds, contents=held.contents
                )
                granted += 1
        except kvxfer.Error as error:
            logger.error("kvxfer: blocks of %s cannot be leased: %s", held.request, shown(error))
            self._refuse(held, granted)
        if granted == 0:
            self._end(held.lease, held.request)
            self._early.take(held.lease)
            return
        self._leases[held.lease] = _Lease(held.request, granted, open=granted)
        # Those that wait for it were answered when it was granted.
        if self._early.take(held.lease) or granted < len(held.groups):
            self.give_back(held.lease)

    def _refuse(self, held: Held, first: int) -> None:
        """Its groups from ``first`` on. Whoever waits for a lease hears of it when it is granted, and
        whoever comes later hears that it has ended: so it is granted for a block that no reference
        names, and released."""
        until = time.monotonic() + self._seconds
        for index in range(first, len(held.groups)):
            part = _Refused(cache_name(index), held.contents, until)
            self._refused[part_of(held.lease, index)] = part
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
        for index in range(known.granted):
            try:
                self._agent.renew_lease(part_of(lease, index), self._seconds)
            except kvxfer.Error:
                pass  # it has ended meanwhile
        return True

    def give_back(self, lease: str) -> bool:
        """False: this worker does not hold it, and has not held it lately."""
        known = self._leases.get(lease)
        if known is None:
            return lease in self._over
        for index in range(known.granted):
            try:
                self._agent.release_lease(part_of(lease, index))
            except kvxfer.Error:
                pass
        return True

    def ended(self, part: str, how: str) -> None:
        lease = part.rpartition("/")[0]
        known = self._leases.get(lease)
        if known is None:
            return
        known.open -= 1
        if how == "expired":
            logger.warning(
                "kvxfer: nobody fetched %s (group %s of request %s) in time",
                *(shown(each) for each in (lease, part.rpartition("/")[2], known.request)),
            )
        if known.open == 0:
            self._end(lease, known.request)
            if how == "expired":
                self._stats.count("expired_leases")

    def _end(self, lease: str, request: str) -> None:
        """For other threads it is over before it is held no more."""
        self._over[lease] = None
        if len(self._over) > _MAX_ENDED:
            self._over.popitem(last=False)
        self._leases.pop(lease, None)
        self._ended.add(request)

    def take_ended(self) -> set[str]:
        self._answer_refused()
        ended, self._ended = self._ended, set()
        return ended

"""Prefill, pull: blocks are kept under a lease of this worker's agent until decode has read them."""

from __future__ import annotations

from dataclasses import dataclass

import kvxfer
from kvxfer.vllm.caches import cache_name
from kvxfer.vllm.early_releases import EarlyReleases
from kvxfer.vllm.log import logger, shown
from kvxfer.vllm.stats import Stats
from kvxfer.vllm.step import Held


def part_of(lease: str, group: int) -> str:
    """The lease of one group's blocks."""
    return f"{lease}/{group}"


@dataclass
class _Lease:
    request: str
    granted: int  # parts
    open: int  # of them


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
        if granted == 0:
            self._ended.add(held.request)
            return
        self._leases[held.lease] = _Lease(held.request, granted, open=granted)
        # Those that wait for it were answered when it was granted.
        if self._early.take(held.lease) or granted < len(held.groups):
            self.give_back(held.lease)

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
        """As renew."""
        known = self._leases.get(lease)
        if known is None:
            return False
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
            del self._leases[lease]
            self._ended.add(known.request)
            if how == "expired":
                self._stats.count("expired_leases")

    def take_ended(self) -> set[str]:
        ended, self._ended = self._ended, set()
        return ended

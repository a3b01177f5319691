"""The prefill and decode instances: which are up, which of them is next, what is known of each."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import aiohttp

PREFILL, DECODE = "prefill", "decode"
_CHECKS_UNTIL_DOWN = 2
_REFERENCE_VERSION = 3  # of the connector's part of kv_transfer_params that is written here
# What it says of the instance that has made it.
_OF_INSTANCE = ("version", "engine", "workers", "tp", "layers", "fingerprint")

log = logging.getLogger("proxy")


class Failure(Exception):
    """An instance did not do its part, for a reason that is its own: another one may."""

    def __init__(
        self, instance: Instance, kind: str, why: str, status: int = 502, said: str = ""
    ) -> None:
        """``said``: the instance's own words. They may repeat the prompt, and are for the client
        only, not for the log."""
        super().__init__(f"{instance.stage} instance {instance.url} {why}")
        self.instance, self.kind, self.status, self.said = instance, kind, status, said


class NobodyIsUp(Exception):
    def __init__(self, stage: str) -> None:
        super().__init__(f"no {stage} instance is up")
        self.stage = stage


@dataclass(frozen=True)
class PushSource:
    """What a decode instance has to know of a prefill instance that will write to it: the same for
    each request as long as that instance lives."""

    reference: dict[str, Any]

    @classmethod
    def of(cls, params: dict[str, Any] | None) -> PushSource | None:
        """From what a prefill instance has answered; None where that is of another version."""
        said = (params or {}).get("kvxfer")
        if not isinstance(said, dict) or said.get("version") != _REFERENCE_VERSION:
            return None
        if not all(said.get(key) for key in _OF_INSTANCE):
            return None
        return cls({key: said[key] for key in _OF_INSTANCE})

    def params(self, transfer: str) -> dict[str, Any]:
        reference = self.reference | {"mode": "push", "transfer": transfer}
        return {"do_remote_prefill": True, "do_remote_decode": False, "kvxfer": reference}


class Instance:
    """One ``vllm serve``. ``healthy``: it may be chosen. ``down`` ends what it has been asked; its
    health checks set it, a connection that cannot be made does not: a full backlog has that effect
    too, and what is being computed there should not all move elsewhere because of it."""

    def __init__(self, stage: str, url: str) -> None:
        self.stage, self.url = stage, url
        self.healthy = False  # until it has answered once
        self.down = asyncio.Event()
        self.in_flight = 0
        self.chosen = 0  # when, by the pool's count
        self.push_source: PushSource | None = None
        self._failed_checks = 0

    def checked(self, well: bool) -> None:
        self._failed_checks = 0 if well else self._failed_checks + 1
        if well:
            self._say_if(not self.healthy, "is up")
            self.healthy = True
            self.down.clear()
        elif self._failed_checks >= _CHECKS_UNTIL_DOWN:
            self._say_if(self.healthy, f"is out: {self._failed_checks} health checks failed")
            self._out()
            self.down.set()

    def unreachable(self) -> None:
        self._say_if(self.healthy, "is out: it cannot be connected to")
        self._out()

    def state(self) -> dict[str, Any]:
        return {"url": self.url, "healthy": self.healthy, "in_flight": self.in_flight}

    def _out(self) -> None:
        self.healthy = False
        self.push_source = None  # it will be another life

    def _say_if(self, changed: bool, what: str) -> None:
        if changed:
            log.warning("%s instance %s %s", self.stage, self.url, what)


class Pool:
    """The instances of one stage."""

    def __init__(self, stage: str, urls: list[str]) -> None:
        self.stage = stage
        self.instances = [Instance(stage, url) for url in urls]
        self._count = itertools.count(1)

    def any_is_up(self) -> bool:
        return any(instance.healthy for instance in self.instances)

    def choose(self, failed: Collection[Instance] = ()) -> Instance:
        """The one with the least in flight, of equals the one that was not chosen for longest. One
        that has failed this request is asked again only where no other is up."""
        up = [instance for instance in self.instances if instance.healthy]
        if not up:
            raise NobodyIsUp(self.stage)
        candidates = [instance for instance in up if instance not in failed] or up
        best = min(candidates, key=lambda instance: (instance.in_flight, instance.chosen))
        best.chosen = next(self._count)
        return best


async def watch(
    instance: Instance, session: aiohttp.ClientSession, interval: float, limit: float
) -> None:
    """Checks an instance's health for ever."""
    while True:
        instance.checked(await _is_healthy(instance, session, limit))
        await asyncio.sleep(interval)


async def _is_healthy(instance: Instance, session: aiohttp.ClientSession, limit: float) -> bool:
    try:
        timeout = aiohttp.ClientTimeout(total=limit)
        async with session.get(f"{instance.url}/health", timeout=timeout) as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
        return False

"""Decode, pull: blocks are read under the lease that their owner holds. What was read counts only when
the owner confirms that the lease held to the last byte."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import kvxfer
from kvxfer.vllm.caches import RegisteredCaches
from kvxfer.vllm.errands import Errands
from kvxfer.vllm.holding import part_of
from kvxfer.vllm.log import logger
from kvxfer.vllm.peers import CannotMeet, Peers
from kvxfer.vllm.settings import Settings
from kvxfer.vllm.stats import Stats
from kvxfer.vllm.step import Fetch

_PAUSE_S = 0.005
# A load that has just begun is often over in less than a step of an engine that has nothing to compute:
# it is driven for so long in each step.
_YOUNG_S = 0.005
_DRIVE_S = 0.0003


@dataclass
class _Load:
    fetch: Fetch
    begun: float
    transfers: dict[int, kvxfer.Transfer] = field(default_factory=dict)  # by group
    attempts: int = 0
    retries: int = 0
    not_before: float = 0.0
    given_up: bool = False
    failed: str = ""

    def in_the_way(self) -> bool:
        """Bytes may still land."""
        return any(not each.done() or each.quarantined for each in self.transfers.values())


class Fetching:
    def __init__(
        self,
        agent: kvxfer.Agent,
        peers: Peers,
        errands: Errands,
        settings: Settings,
        stats: Stats,
    ) -> None:
        self._agent = agent
        self._peers = peers
        self._errands = errands
        self._settings = settings
        self._stats = stats
        self._loads: dict[str, _Load] = {}
        self.caches: RegisteredCaches | None = None

    def begin(self, fetch: Fetch) -> None:
        load = self._loads[fetch.request] = _Load(fetch, time.monotonic())
        self._post(load)

    def give_up(self, request: str) -> None:
        load = self._loads.get(request)
        if load is None:
            return
        load.given_up = True
        for transfer in load.transfers.values():
            transfer.cancel()

    def poll(self) -> tuple[set[str], set[str]]:
        """Requests that are loaded (or were given up, and may be forgotten), and that are not."""
        loaded: set[str] = set()
        failed: set[str] = set()
        if self._loads:
            self._drive()
        for request, load in list(self._loads.items()):
            ended = self._go_on(load)
            if ended:
                self._end(load)
                (failed if load.failed else loaded).add(request)
        return loaded, failed

    def _drive(self) -> None:
        now = time.monotonic()
        until = now + _DRIVE_S
        for load in self._loads.values():
            if now > load.begun + _YOUNG_S:
                continue
            for transfer in load.transfers.values():
                transfer._drive(max(0.0, until - time.monotonic()))

    def _go_on(self, load: _Load) -> bool:
        """Whether it has ended. What it is asked first, whether something is under way, is what all
        the rest rests on: a transfer may end at any time."""
        if load.in_the_way():
            return False
        errors = {
            group: each.error for group, each in load.transfers.items() if each.error is not None
        }
        all_are_read = len(load.transfers) == len(load.fetch.parts) and not errors
        if load.given_up or load.failed or all_are_read:
            return True
        if errors:
            self._consider(load, errors)
        if not load.failed and time.monotonic() >= load.not_before:
            self._post(load)
        return bool(load.failed) and not load.in_the_way()

    def _consider(self, load: _Load, errors: Mapping[int, Exception]) -> None:
        """Another attempt, at the groups that have failed, or the end."""
        now = time.monotonic()
        error = next(iter(errors.values()))
        # The answer to a client may overtake what the prefill engine's worker hears in its next step.
        early = all("never granted" in str(each) for each in errors.values())
        again = (
            now < load.begun + self._settings.handshake_timeout or load.attempts < 2
            if early
            else load.retries < self._settings.retries
            and all(isinstance(each, kvxfer.PeerLost) for each in errors.values())
        )
        if not again or now > load.begun + self._settings.timeout:
            load.failed = str(error)
            return
        for group in errors:
            del load.transfers[group]
        load.not_before = now + _PAUSE_S
        if not early:
            load.retries += 1
            self._stats.count("retries")

    def _post(self, load: _Load) -> None:
        fetch = load.fetch
        try:
            names = self._peers.meet(fetch.reference.workers, load.begun)
            if names is not None:
                self._read(load, names)
            elif time.monotonic() > load.begun + self._settings.timeout:
                load.failed = f"its engine was not met within {self._settings.timeout:g} s"
        except (CannotMeet, kvxfer.Error, ValueError, TypeError, OverflowError) as error:
            load.failed = str(error)
            for transfer in load.transfers.values():
                transfer.cancel()

    def _read(self, load: _Load, names: list[str]) -> None:
        """All groups that are not read yet."""
        fetch = load.fetch
        assert self.caches is not None
        load.attempts += 1
        left = load.begun + self._settings.timeout - time.monotonic()
        for index, (part, theirs) in enumerate(
            zip(fetch.parts, fetch.reference.groups, strict=True)
        ):
            if index in load.transfers:
                continue
            tokens = fetch.reference.block_tokens[index]
            load.transfers[index] = self._agent.read_blocks(
                names,
                **self.caches.between(index, part.blocks, theirs, tokens, part.first, part.last),
                lease=part_of(fetch.lease, index),
                deadline=max(0.1, left),
                stream=self.caches.stream(),
            )

    def _end(self, load: _Load) -> None:
        fetch = load.fetch
        del self._loads[fetch.request]
        if load.failed or load.given_up:
            message = {"do": "return", "lease": fetch.lease}
            self._errands.send(fetch.reference.workers, message, load.begun)
        if load.given_up:
            return
        if load.failed:
            self._stats.count("failed_loads")
            logger.error(
                "kvxfer: request %s could not be loaded from engine %s: %s",
                fetch.request,
                fetch.reference.engine,
                load.failed,
            )
            return
        self._stats.observe("load_seconds", time.monotonic() - load.begun)
        self._stats.observe("load_bytes", sum(each.stats.bytes for each in load.transfers.values()))

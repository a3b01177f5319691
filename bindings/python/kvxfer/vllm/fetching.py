"""Decode, pull: blocks are read under the lease that their owner holds. What was read counts only when
the owner confirms that the lease held to the last byte."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import kvxfer
from kvxfer.vllm.caches import RegisteredCaches
from kvxfer.vllm.outbox import Outbox
from kvxfer.vllm.holding import part_of
from kvxfer.vllm.log import logger, shown
from kvxfer.vllm.peers import CannotMeet, Peers
from kvxfer.vllm.reference import Worker
from kvxfer.vllm.settings import Settings
from kvxfer.vllm.sources import Sources, all_of, sources_of, told_by
from kvxfer.vllm.stats import Stats
from kvxfer.vllm.step import Fetch

_PAUSE_S = 0.05  # before another attempt
# The owner answers so long before the transfer's own deadline that its answer comes in time.
_ANSWER_S = 0.2
_OTHER_PROMPT = (
    "this prompt is not the one that the prefill engine computed for this reference: tokens, "
    "cache_salt, LoRA adapter or images differ"
)
# A load that has just begun is often over in less than a step of an engine that has nothing to compute:
# it is driven for so long in each step.
_YOUNG_S = 0.005
_DRIVE_S = 0.0003


@dataclass
class _Load:
    fetch: Fetch
    begun: float
    sources: Sources
    transfers: dict[int, kvxfer.Transfer] = field(default_factory=dict)  # by cache
    retries: int = 0
    not_before: float = 0.0
    given_up: bool = False
    keeps_lease: bool = False
    failed: str = ""

    def in_the_way(self) -> bool:
        """Bytes may still land."""
        return any(not each.done() or each.quarantined for each in self.transfers.values())

    def cancel(self) -> None:
        for transfer in self.transfers.values():
            transfer.cancel()


class Fetching:
    def __init__(
        self,
        agent: kvxfer.Agent,
        peers: Peers,
        outbox: Outbox,
        settings: Settings,
        stats: Stats,
        fenced: bool = False,
    ) -> None:
        """``fenced``: vLLM gives no block to a load before what was computed in it has ended. Otherwise a
        read begins after what is in the stream."""
        self._fenced = fenced
        self._agent = agent
        self._peers = peers
        self._outbox = outbox
        self._settings = settings
        self._stats = stats
        self._loads: dict[str, _Load] = {}
        self.caches: RegisteredCaches | None = None

    def begin(self, fetch: Fetch) -> None:
        assert self.caches is not None
        load = _Load(fetch, time.monotonic(), {})
        self._loads[fetch.request] = load
        try:
            load.sources = sources_of(self.caches, fetch.reference.workers, fetch.reference.division)
        except (kvxfer.Error, ValueError) as error:
            load.failed = str(error)
            return
        self._post(load)

    def give_up(self, request: str, keeps_lease: bool = False) -> None:
        load = self._loads.get(request)
        if load is not None:
            load.given_up = True
            load.keeps_lease = keeps_lease
            load.cancel()

    def fail(self, request: str, why: str) -> None:
        """However far it is."""
        load = self._loads.get(request)
        if load is not None and not load.given_up:
            load.failed = load.failed or why
            load.cancel()

    def workers(self) -> set[Worker]:
        """That requests are being loaded from."""
        loads = self._loads.values()
        return {worker for load in loads for worker in all_of(load.sources)}

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
        """Whether it has ended. What it is asked first, what has ended and how, is what all the rest
        rests on: a transfer may end at any time."""
        ended = {group: each for group, each in load.transfers.items() if each.done()}
        errors = {group: each.error for group, each in ended.items() if each.error is not None}
        self._look_for_the_end(load, errors)
        if load.in_the_way():
            return False
        all_are_read = len(ended) == len(load.sources) and not errors
        if load.given_up or load.failed or all_are_read:
            return True
        for group in errors:
            del load.transfers[group]
        if errors:
            load.not_before = time.monotonic() + _PAUSE_S
            self._stats.count("retries")
        if any(isinstance(each, kvxfer.PeerLost) for each in errors.values()):
            load.retries += 1
        if time.monotonic() >= load.not_before:
            self._post(load)
        return bool(load.failed) and not load.in_the_way()

    def _look_for_the_end(self, load: _Load, errors: Mapping[int, Exception]) -> None:
        """One group that cannot be had is the end of all."""
        if load.given_up or load.failed or not errors:
            return
        if any(isinstance(each, kvxfer.ResourceExhausted) for each in errors.values()):
            self._stats.count("exhausted")
            self._peers.let_idle_go()  # for the next one
        final = next((each for each in errors.values() if not _may_pass(each)), None)
        late = time.monotonic() > load.begun + self._settings.timeout
        lost = any(isinstance(each, kvxfer.PeerLost) for each in errors.values())
        tired = lost and load.retries >= self._settings.retries
        if final is None and not late and not tired:
            return
        load.failed = self._describe(final or next(iter(errors.values())))
        load.cancel()

    def _describe(self, error: Exception) -> str:
        refusal = error.refusal if isinstance(error, kvxfer.LeaseRefused) else ""
        if refusal == "other_contents":
            return _OTHER_PROMPT
        if refusal == "unknown":
            return (
                f"the prefill engine's worker has not heard of it within {self._settings.timeout:g} s "
                f'("timeout"), or has forgotten it: {error}'
            )
        return str(error)

    def _post(self, load: _Load) -> None:
        workers = all_of(load.sources)
        try:
            names = self._peers.meet(workers, load.begun)
            if names is not None:
                self._read(load, dict(zip(workers, names, strict=True)))
            elif time.monotonic() > load.begun + self._settings.timeout:
                load.failed = f"its engine was not met within {self._settings.timeout:g} s"
        except (CannotMeet, kvxfer.Error, ValueError, TypeError, OverflowError) as error:
            load.failed = str(error)
            load.cancel()

    def _read(self, load: _Load, names: Mapping[Worker, str]) -> None:
        """All caches that are not read yet."""
        fetch = load.fetch
        caches = self.caches
        assert caches is not None
        left = max(0.1, load.begun + self._settings.timeout - time.monotonic())
        for number, workers in load.sources.items():
            if number in load.transfers:
                continue
            group = caches.caches[number].group
            part, theirs = fetch.parts[group], fetch.reference.groups[group]
            tokens = fetch.reference.block_tokens[group]
            load.transfers[number] = self._agent.read_blocks(
                [names[worker] for worker in workers],
                **caches.between(number, part.blocks, theirs, tokens, part.first, part.last),
                lease=part_of(fetch.lease, number),
                lease_contents=fetch.contents,
                # The answer to a client may overtake what prefill's other workers hear.
                lease_wait=max(0.0, left - _ANSWER_S),
                stages=caches.division.first_layers(number),
                deadline=left,
                stream=None if self._fenced else caches.stream(),
            )

    def _end(self, load: _Load) -> None:
        fetch = load.fetch
        del self._loads[fetch.request]
        if (load.failed or load.given_up) and not load.keeps_lease:
            message = {"do": "return", "lease": fetch.lease}
            assert self.caches is not None
            workers = told_by(self.caches, fetch.reference.workers, fetch.reference.division)
            self._outbox.send(workers, message, load.begun)
        if load.given_up:
            return
        if load.failed:
            self._stats.count("failed_loads")
            logger.error(
                "kvxfer: request %s could not be loaded from engine %s: %s",
                fetch.request,
                fetch.reference.engine,
                shown(load.failed, 1000),
            )
            return
        self._stats.observe("load_seconds", time.monotonic() - load.begun)
        self._stats.observe("load_bytes", sum(each.stats.bytes for each in load.transfers.values()))


def _may_pass(error: Exception) -> bool:
    """Whether another attempt may succeed."""
    if isinstance(error, kvxfer.LeaseRefused):
        return error.refusal == "busy"
    return isinstance(error, kvxfer.PeerLost)

"""Decode, push: room is offered to the prefill engine, which writes into it. A request that fails does not
wait for that engine; the scheduler keeps its blocks out of use until nothing of a peer can land in them
any more."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import kvxfer
from kvxfer.vllm.caches import RegisteredCaches
from kvxfer.vllm.outbox import Outbox, first_error, tell
from kvxfer.vllm.log import limited, logger, shown
from kvxfer.vllm.peers import CannotMeet, Peers
from kvxfer.vllm.pushing import ARRIVAL
from kvxfer.vllm.reference import to_runs
from kvxfer.vllm.settings import Settings
from kvxfer.vllm.sources import all_of, sources_of, told_by
from kvxfer.vllm.stats import Stats
from kvxfer.vllm.step import Offer

# A prefill engine that has not answered is told again that nothing more is wanted: either may be lost.
_AGAIN_S = 1.0
# One that does not answer: after so long, or two leases, its connections have been closed, and it
# begins no write of its own accord, for it has not heard of this engine for longer than a lease.
_SILENT_S = 60.0
_NOT_ASKED = -1


@dataclass
class _Destination:
    offer: Offer
    begun: float
    until: float
    names: list[str] = field(default_factory=list)  # of prefill's agents, once it was offered
    missing: dict[str, int] = field(default_factory=dict)  # tokens, of each cache
    messages: dict[str, list[kvxfer.Transfer]] = field(default_factory=dict)  # what was last, by agent
    settled: set[str] = field(default_factory=set)  # agents that write nothing more into it
    failed: str = ""
    given_up: bool = False
    # From when on nothing more is wanted:
    left: float = 0.0
    not_before: dict[str, float] = field(default_factory=dict)  # to be told again, by agent
    questions: dict[str, int] = field(default_factory=dict)  # what has to become quiet, by agent

    @property
    def leaving(self) -> bool:
        return bool(self.failed) or self.given_up


class Receiving:
    def __init__(
        self,
        agent: kvxfer.Agent,
        peers: Peers,
        outbox: Outbox,
        settings: Settings,
        stats: Stats,
        here: str,
    ) -> None:
        """``here``: where peers reach the agent."""
        self._agent = agent
        self._peers = peers
        self._outbox = outbox
        self._settings = settings
        self._stats = stats
        self._here = here
        self._destinations: dict[str, _Destination] = {}  # by lease
        self._left: dict[str, _Destination] = {}
        self._turned_away: set[str] = set()  # requests
        # What the scheduler has not heard: by request, 1 or -1.
        self._unsettled: dict[str, int] = {}
        self.caches: RegisteredCaches | None = None

    def begin(self, offer: Offer) -> None:
        if offer.lease in self._destinations or offer.lease in self._left:
            self._stats.count("failed_loads")
            logger.error("kvxfer: request %s: its reference is in use", offer.request)
            self._turned_away.add(offer.request)
            return
        now = time.monotonic()
        destination = _Destination(offer, now, now + self._settings.lease)
        destination.missing = self._missing(offer)
        self._destinations[offer.lease] = destination
        self._go_on(destination)

    def _missing(self, offer: Offer) -> dict[str, int]:
        caches = self.caches
        assert caches is not None
        return {
            cache.name: offer.parts[cache.group].last - offer.parts[cache.group].first
            for cache, shard in zip(caches.caches, caches.shards, strict=True)
            if shard.layers
        }

    def peers(self) -> set[str]:
        """That may write into destinations."""
        destinations = [*self._destinations.values(), *self._left.values()]
        return {name for destination in destinations for name in destination.names}

    def give_up(self, request: str) -> None:
        for destination in self._destinations.values():
            if destination.offer.request == request:
                destination.given_up = True

    def fail(self, request: str, why: str) -> None:
        for destination in self._destinations.values():
            if destination.offer.request == request and not destination.leaving:
                destination.failed = why

    # --- what prefill says ---

    def arrived(self, name: str, cache: str, payload: bytes) -> None:
        """A piece of a request, into one cache; KeyError, ValueError: not as a connector writes it."""
        destination = self._destinations.get(name.rpartition("#")[0])
        if destination is None:
            return
        if len(payload) != ARRIVAL.size:
            raise ValueError(f"{name}: {payload!r}")
        (tokens,) = ARRIVAL.unpack(payload)
        if not 0 < tokens <= destination.missing[cache]:
            raise ValueError(f"{name}: {payload!r} of {cache}")
        destination.missing[cache] -= tokens
        destination.until = time.monotonic() + self._settings.lease

    def alive(self, lease: str) -> None:
        destination = self._destinations.get(lease)
        if destination is not None:
            destination.until = time.monotonic() + self._settings.lease

    def refused(self, peer: str, lease: str, why: str) -> None:
        """That agent writes nothing more."""
        destination = self._destinations.get(lease) or self._left.get(lease)
        if destination is None:
            return
        destination.settled.add(peer)
        if not destination.leaving and any(destination.missing.values()):
            destination.failed = why

    def lost(self, name: str, why: str) -> None:
        """This agent has given a piece up."""
        destination = self._destinations.get(name.rpartition("#")[0])
        if destination is not None and not destination.leaving:
            destination.failed = why

    def peer_lost(self, peer: str) -> None:
        """Its connections are. It may go on over others, if it is there at all."""
        for lease, destination in self._destinations.items():
            if peer in destination.names and not destination.leaving:
                destination.messages[peer] = tell(self._agent, peer, {"do": "renew", "lease": lease})

    # --- each step ---

    def poll(self) -> tuple[set[str], set[str]]:
        """As Fetching.poll; take_unsettled() has those whose blocks are not to be used yet."""
        loaded: set[str] = set()
        failed = self._turned_away
        self._turned_away = set()
        for lease, destination in list(self._destinations.items()):
            self._go_on(destination)
            if not destination.leaving and any(destination.missing.values()):
                continue
            del self._destinations[lease]
            self._end(destination)
            (failed if destination.failed else loaded).add(destination.offer.request)
        for lease, destination in list(self._left.items()):
            if self._is_quiet(destination):
                del self._left[lease]
                self._count_unsettled(destination, -1)
        return loaded, failed

    def take_unsettled(self) -> dict[str, int]:
        unsettled, self._unsettled = self._unsettled, {}
        return unsettled

    def _count_unsettled(self, destination: _Destination, change: int) -> None:
        request = destination.offer.request
        self._unsettled[request] = self._unsettled.get(request, 0) + change

    def _go_on(self, destination: _Destination) -> None:
        if destination.leaving:
            return
        if time.monotonic() > destination.until:
            destination.failed = (
                f"the prefill engine has not said or written anything for {self._settings.lease:g} s"
            )
            return
        if destination.names:
            self._check_messages(destination)
            return
        try:
            reference = destination.offer.reference
            assert self.caches is not None
            sources = sources_of(self.caches, reference.workers, reference.division)
            names = self._peers.meet(all_of(sources), destination.begun)
        except (CannotMeet, kvxfer.Error, ValueError) as error:
            destination.failed = str(error)
            return
        if names is not None:
            destination.names = names
            self._offer(destination)

    def _offer(self, destination: _Destination) -> None:
        offer = destination.offer
        caches = self.caches
        assert caches is not None
        message = {
            "do": "offer",
            "lease": offer.lease,
            "contents": offer.contents,
            "from": self._here,
            "rank": caches.number,
            "tp": offer.division.tp,
            "layers": [list(stages) for stages in offer.division.layers],
            "seconds": self._settings.lease,
            "workers": [[worker.address, worker.incarnation] for worker in offer.decode],
            "parts": [
                [part.blocks.first_block, to_runs(part.blocks.ids), part.first, part.last]
                for part in offer.parts
            ],
            "block_tokens": list(offer.block_tokens),
        }
        for name in destination.names:
            # Once told prefill may write, whatever is still computed here.
            destination.messages[name] = tell(self._agent, name, message, caches.stream())

    def _check_messages(self, destination: _Destination) -> None:
        """An engine that is gone gives no answer."""
        for name, told in destination.messages.items():
            error = first_error(told)
            if error is None:
                continue
            destination.failed = str(error)
            if _is_gone(error):
                destination.settled.add(name)

    # --- the end ---

    def _end(self, destination: _Destination) -> None:
        if destination.leaving:
            self._leave(destination)
        if destination.given_up:
            return
        if destination.failed:
            self._stats.count("failed_loads")
            logger.error(
                "kvxfer: request %s was not written by engine %s: %s",
                destination.offer.request,
                destination.offer.reference.engine,
                shown(destination.failed, 1000),
            )
            return
        self._stats.observe("load_seconds", time.monotonic() - destination.begun)

    def _leave(self, destination: _Destination) -> None:
        destination.left = time.monotonic()
        destination.messages.clear()
        destination.questions = dict.fromkeys(destination.names, _NOT_ASKED)
        if not destination.names:  # it was never offered: prefill is told as soon as it is met
            reference = destination.offer.reference
            assert self.caches is not None
            workers = told_by(self.caches, reference.workers, reference.division)
            message = {"do": "return", "lease": destination.offer.lease}
            self._outbox.send(workers, message, destination.begun)
        if not self._is_quiet(destination):
            self._left[destination.offer.lease] = destination
            self._count_unsettled(destination, 1)

    def _is_quiet(self, destination: _Destination) -> bool:
        """First prefill says that it writes no more, or is gone; then what it has begun must have
        ended."""
        for name in set(destination.names) - destination.settled:
            self._settle(destination, name)
        return destination.settled >= set(destination.names) and self._questions_answered(destination)

    def _settle(self, destination: _Destination, name: str) -> None:
        now = time.monotonic()
        if now > destination.left + max(_SILENT_S, 2 * self._settings.lease):
            limited.warning(
                "silent", "%s does not say that it writes no more", shown(name)
            )
            destination.settled.add(name)
            return
        told = destination.messages.get(name, [])
        error = first_error(told)
        if error is not None and _is_gone(error):
            destination.settled.add(name)
        elif name not in destination.messages or (
            now >= destination.not_before.get(name, 0.0) and all(each.done() for each in told)
        ):
            destination.not_before[name] = now + _AGAIN_S
            message = {"do": "return", "lease": destination.offer.lease, "from": self._here}
            destination.messages[name] = tell(self._agent, name, message)

    def _questions_answered(self, destination: _Destination) -> bool:
        for name, token in list(destination.questions.items()):
            if not self._is_answered(destination.questions, name, token):
                return False
            del destination.questions[name]
        return True

    def _is_answered(self, questions: dict[str, int], name: str, token: int) -> bool:
        try:
            if token == _NOT_ASKED:
                token = questions[name] = self._agent.quiesce(name, timeout=0.0).token
            return token == 0 or self._agent.is_quiet(token)
        except kvxfer.NotFound:
            return True  # answered before
        except kvxfer.Error as error:  # as many are asked as can be at once
            logger.debug("kvxfer: %s: %s", shown(name), shown(error))
            return False


def _is_gone(error: Exception) -> bool:
    """Not merely out of reach: its process has ended, or another life is where it was."""
    return isinstance(error, kvxfer.Error) and error.reason in ("peer_restarted", "peer_gone")

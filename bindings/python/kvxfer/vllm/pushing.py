"""Prefill, push: a request's blocks are written into the room that decode has offered, layer by layer
where they are just being computed."""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import kvxfer
from kvxfer.vllm.caches import RegisteredCaches
from kvxfer.vllm.division import Division
from kvxfer.vllm.early_releases import EarlyReleases
from kvxfer.vllm.groups import Group
from kvxfer.vllm.outbox import Answers, Sender, tell
from kvxfer.vllm.layer_writes import LayerWrites
from kvxfer.vllm.log import limited, shown
from kvxfer.vllm.peers import CannotMeet, Peers
from kvxfer.vllm.push import Offer, Push
from kvxfer.vllm.reference import GroupBlocks, division_of, from_runs, workers_of
from kvxfer.vllm.settings import Settings
from kvxfer.vllm.sources import targets_of
from kvxfer.vllm.stats import Stats
from kvxfer.vllm.step import Abandoned, Expected, Heard, Part, Write

# With each piece: how many tokens of it.
ARRIVAL = struct.Struct("<I")

_MAX_OFFERS = 4096
_MAX_ENDED = 4096
_MAX_BLOCKS = 1 << 20  # of a request in one group
_IN_USE = "the reference is in use by another request"
_UNWANTED = "the decode engine wants it no more"
_UNKNOWN = "this engine does not know the request"
_OTHER_PROMPT = (
    "this prompt is not the one that the prefill engine computes for this reference: tokens, "
    "cache_salt, LoRA adapter or images differ"
)
_LET_GO_S = 1.0  # all requests wait meanwhile
# A cancelled transfer ends within its agent's grace, unless a GPU hangs. Decode is not told that such a
# piece has arrived, so it takes nothing of it.
_CANCELLED_S = 60.0


class Pushing:
    """``closes``, ``is_over`` and ``layer_is_saved`` may be called by any thread, the rest by the
    engine's."""

    def __init__(
        self,
        agent: kvxfer.Agent,
        peers: Peers,
        answers: Answers,
        groups: Sequence[Group],
        settings: Settings,
        stats: Stats,
        early: EarlyReleases,
        why_not: str = "",
    ) -> None:
        """``why_not``: empty, or why this engine writes to nobody."""
        self._why_not = why_not
        self._agent = agent
        self._peers = peers
        self._early = early
        self._answers = answers
        self._settings = settings
        self._stats = stats
        self._groups = groups
        self._pushes: dict[str, Push] = {}  # by lease
        self._unexpected: OrderedDict[str, Offer] = OrderedDict()
        self._over: OrderedDict[str, None] = OrderedDict()  # leases that ended lately
        self._lock = threading.Lock()  # guards which leases are in _pushes, and _over
        self._layers = LayerWrites(agent, self._fail)
        self._heard = Heard()
        self._ended: set[str] = set()
        self._caches: RegisteredCaches | None = None

    @property
    def caches(self) -> RegisteredCaches | None:
        return self._caches

    @caches.setter
    def caches(self, caches: RegisteredCaches) -> None:
        self._caches = self._layers.caches = caches

    def has_any(self) -> bool:
        return bool(self._pushes)

    def peers(self) -> set[str]:
        """That it writes to, or may have to."""
        offers = [push.offer for push in self._pushes.values() if push.offer is not None]
        return {
            name for each in [*offers, *self._unexpected.values()] for name in each.names.values()
        }

    # --- what the scheduler says ---

    def expect(self, expected: Expected) -> None:
        lease, push = expected.lease, Push(expected.contents)
        with self._lock:
            self._pushes[lease] = push
            over = lease in self._over
        offer = self._unexpected.pop(lease, None)
        if self._early.take(lease) or over:
            self._fail(lease, push, _UNWANTED)
        elif offer is not None:
            self._accept(lease, push, offer)

    def write(self, write: Write) -> None:
        push = self._pushes.get(write.lease)
        if push is None or push.offer is None:
            return
        push.request = write.request
        push.last_write = write.final
        push.held = write.final
        if time.monotonic() > push.offer.until:
            # It has perhaps given the room up, and could not say so.
            self._fail(write.lease, push, "the decode engine has not been heard of")
        if push.abandoned:
            return
        assert self._caches is not None
        try:
            for number, cache in enumerate(self._caches.caches):
                part = push.offer.parts[cache.group]
                first, last = max(write.first, part.first), min(write.last, part.last)
                if first < last:
                    self._write_cache(push, write, number, first, last)
        except (kvxfer.Error, ValueError, TypeError, OverflowError) as error:
            self._fail(write.lease, push, str(error))

    def abandon(self, abandoned: Abandoned) -> None:
        with self._lock:
            push = self._pushes.setdefault(abandoned.lease, Push())
        push.request = abandoned.request
        push.held = push.held or abandoned.held
        push.last_write = True
        self._fail(abandoned.lease, push, abandoned.why, known=abandoned.why)
        offer = self._unexpected.pop(abandoned.lease, None)
        if offer is not None:
            self._accept(abandoned.lease, push, offer)

    def let_go_of(self, requests: list[str]) -> None:
        """Waits until nothing reads their blocks; what is on its way is worth waiting for, for a
        while."""
        end = time.monotonic() + _LET_GO_S
        transfers = [
            transfer
            for push in self._pushes.values()
            if push.request in requests
            for transfer in push.transfers
        ]
        for transfer in transfers:
            with contextlib.suppress(kvxfer.Error):  # told when it is polled
                transfer.wait(max(0.0, end - time.monotonic()))
        for transfer in transfers:  # all, then each: a cancellation may take a while, too
            transfer.cancel()
        for transfer in transfers:
            with contextlib.suppress(kvxfer.Error):
                transfer.wait(_CANCELLED_S)

    # --- what the model runner says ---

    def begin_step(self) -> None:
        """Before what is written in it."""
        self._layers.begin_step()

    def layer_is_saved(self, layer: str) -> None:
        """For some of the step's tokens, or for all."""
        self._layers.layer_is_saved(layer)

    def all_is_computed(self, broken: str = "") -> None:
        """``broken``: as of LayerWrites.all_is_computed."""
        self._layers.all_is_computed(broken)

    # --- what decode says ---

    def offer(self, sender: Sender, message: dict[str, Any]) -> None:
        """KeyError, TypeError, ValueError: not as a connector makes it."""
        lease = message["lease"]
        offer = self._read_offer(sender, message)
        push = self._pushes.get(lease)
        known = push.offer if push is not None else self._unexpected.get(lease)
        if known is not None:
            if (known.contents, known.parts, known.workers) != (
                offer.contents,
                offer.parts,
                offer.workers,
            ):
                self._refuse(lease, offer, _IN_USE)
                raise ValueError("workers of one engine that offer unlike rooms")
            known.senders |= offer.senders
        elif push is not None:
            self._accept(lease, push, offer)
        else:
            self._unexpected[lease] = offer
            if len(self._unexpected) > _MAX_OFFERS:
                self._refuse(
                    *self._unexpected.popitem(last=False), "this engine has too many offers"
                )
        if push is not None and push.offer is not None:
            self._introduce(lease, push)

    def _accept(self, lease: str, push: Push, offer: Offer) -> None:
        if offer.contents != push.contents:
            self._fail(lease, push, _OTHER_PROMPT)
        if push.abandoned:  # before there was room: nothing is on its way there
            self._refuse(lease, offer, push.abandoned)
        else:
            push.offer = offer
            self._introduce(lease, push)

    def renew(self, peer: str, lease: str, at: float) -> None:
        """``at``: when it was said (time.monotonic())."""
        push = self._pushes.get(lease)
        offer = push.offer if push is not None else self._unexpected.get(lease)
        if push is not None:
            self._heard.renewed.add(lease)
        if push is not None and offer is not None:
            offer.until = max(offer.until, at + offer.seconds)
        if offer is not None and peer in offer.names.values():
            tell(self._agent, peer, {"do": "alive", "lease": lease})

    def withdraw(self, sender: Sender, lease: str, answered: bool) -> None:
        """Answered when nothing is written for it any more, unless ``closes`` has answered."""
        self._unexpected.pop(lease, None)
        push = self._pushes.get(lease)
        if push is not None:
            self._fail(lease, push, _UNWANTED)
        elif not answered:
            self.closes(sender, lease)

    def closes(
        self, sender: Sender, lease: str, tell_engine: Callable[[], None] = lambda: None
    ) -> bool:
        """True: a refusal was sent; nothing is or will be written. False: a push is known, and the
        engine's thread must stop it.

        ``tell_engine``: has the engine's thread call ``withdraw`` after all that it was told before.
        Where the lease is not known an offer of it may be among that, and the memory of early releases,
        which is bounded, may have lost this one when the request comes. It is called before the sender,
        who then uses its blocks for others, is answered."""
        with self._lock:
            known, over = lease in self._pushes, lease in self._over
        if known or over:
            self._early.take(lease)
        if known:
            return False
        if not over:
            tell_engine()
        self._answers.send(sender, {"do": "refuse", "lease": lease, "why": _UNWANTED})
        return True

    def is_over(self, sender: Sender, lease: str, read: bool = False) -> bool:
        """Answers that, too. ``read``: it was never to be written."""
        with self._lock:
            over = read or lease in self._over
        if not over and not self._early.has(lease):
            return False
        self._answers.send(sender, {"do": "refuse", "lease": lease, "why": _UNKNOWN})
        return True

    # --- each step ---

    def poll(self) -> None:
        now = time.monotonic()
        for lease, push in list(self._pushes.items()):
            self._introduce(lease, push)
            self._look_at_transfers(lease, push)
        for lease, offer in list(self._unexpected.items()):
            over = lease in self._over or self._early.has(lease) or now > offer.until
            if not (over or self._why_not) and self._meet(offer) is not False:
                continue
            del self._unexpected[lease]
            self._refuse(lease, offer, self._why_not or _UNKNOWN)

    def take_heard(self) -> Heard:
        heard, self._heard = self._heard, Heard()
        return heard

    def take_ended(self) -> set[str]:
        ended, self._ended = self._ended, set()
        return ended

    # --- within ---

    def _introduce(self, lease: str, push: Push) -> None:
        """The scheduler hears of an offer when it can be written into."""
        offer = push.offer
        if offer is None or not offer.whole or push.abandoned or push.reported:
            return
        met = self._meet(offer)
        if met is False:
            self._fail(lease, push, "the decode engine cannot be reached")
        elif met:
            push.reported = True
            self._heard.offered[lease] = 1

    def _meet(self, offer: Offer) -> bool | None:
        """None: not yet; False: it cannot be met."""
        if offer.met:
            return True
        targets = sorted(offer.targets)
        try:
            names = self._peers.meet([offer.workers[each] for each in targets], offer.begun)
        except CannotMeet as error:
            limited.warning("unreachable", "cannot reach the decode engine: %s", shown(error))
            return False
        if names is None:
            return None
        offer.names = dict(zip(targets, names, strict=True))
        offer.met = True
        return True

    def _write_cache(self, push: Push, write: Write, number: int, first: int, last: int) -> None:
        offer, caches = push.offer, self._caches
        assert offer is not None
        assert caches is not None
        cache, shard = caches.caches[number], caches.shards[number]
        targets = offer.division.to_write(number, caches.models[number], shard)
        if not targets:
            return
        names = [offer.names[target] for target in targets]
        ours, theirs = write.groups[cache.group], offer.parts[cache.group].blocks
        tokens = offer.block_tokens[cache.group]
        what = caches.between(number, ours, theirs, tokens, first, last)
        if what["local_first_token"] < 0:
            raise ValueError("a block that decode needs of a sliding window was freed")
        how = {
            "request": f"{write.lease}#{write.number}",
            "notification": ARRIVAL.pack(last - first),
            "deadline": self._settings.timeout,
        }
        if not write.computing:
            stream = caches.stream()
            push.transfers.append(self._agent.write_blocks(names, **what, **how, stream=stream))
            return
        blocks = self._agent.prepare_blocks(names, **what)
        for layer_number, layer in enumerate(caches.own_layers(number), shard.first_layer):
            of_layer = how | {"blocks": blocks, "first_layer": layer_number}
            self._layers.add(layer, write.lease, push, of_layer)

    def _look_at_transfers(self, lease: str, push: Push) -> None:
        # Each is asked once whether it has ended, and then how: it may end at any time.
        done = [each.done() for each in push.transfers]
        both = list(zip(push.transfers, done, strict=True))
        error = next((each.error for each, is_done in both if is_done and each.error), None)
        if error is not None:
            self._fail(lease, push, str(error))
        push.transfers = [each for each, is_done in both if not is_done]
        if push.last_write and not push.transfers and not push.unposted:
            self._end(lease, push)

    def _fail(self, lease: str, push: Push, why: str, known: str = "") -> None:
        """What is on its way ends first; then decode is told. ``known``: a reason that is no news here."""
        if push.abandoned:
            return
        push.abandoned = why
        if why not in (_UNWANTED, known):  # decode logs it too, if it hears of it
            name = shown(push.request or lease)
            limited.warning("push", "request %s is not written to decode: %s", name, shown(why))
        self._heard.withdrawn.add(lease)
        self._stats.count("failed_pushes")
        for transfer in push.transfers:
            transfer.cancel()

    def _end(self, lease: str, push: Push) -> None:
        with self._lock:
            del self._pushes[lease]
            self._end_lease(lease)
        if push.held:
            self._ended.add(push.request)
        if push.abandoned and push.offer is not None:
            self._refuse(lease, push.offer, push.abandoned)

    def _end_lease(self, lease: str) -> None:
        """With the lock. Its name is not used again."""
        self._over[lease] = None
        if len(self._over) > _MAX_ENDED:
            self._over.popitem(last=False)

    def _refuse(self, lease: str, offer: Offer, why: str) -> None:
        for sender in offer.senders.values():
            self._answers.send(sender, {"do": "refuse", "lease": lease, "why": why})

    def _read_offer(self, sender: Sender, message: dict[str, Any]) -> Offer:
        tokens = [_number(each) for each in message["block_tokens"]]
        if not len(message["parts"]) == len(self._groups) == len(tokens) or not all(tokens):
            raise ValueError(f"an offer of {len(tokens)} groups, not {len(self._groups)}")
        parts = [_part(*each, size) for each, size in zip(message["parts"], tokens, strict=True)]
        workers = tuple(workers_of(message))
        division = division_of(message, len(workers))
        number, seconds = _number(message["rank"]), float(message["seconds"])
        if number >= len(workers) or not 0 < seconds <= 86400:
            raise ValueError(f"an offer of worker {number} of {len(workers)}, for {seconds} s")
        at = float(message["at"])
        return Offer(
            str(message["contents"]),
            workers,
            division,
            self._targets(division),
            parts,
            tokens,
            seconds,
            at,
            at + seconds,
            {number: sender},
        )

    def _targets(self, division: Division) -> frozenset[int]:
        assert self._caches is not None
        if len(division.layers) != len(self._caches.caches):
            raise ValueError(f"an offer of {len(division.layers)} KV caches")
        return frozenset(targets_of(self._caches, division))


def _part(block: Any, runs: Any, first: Any, last: Any, block_tokens: int) -> Part:
    if not _number(block) * block_tokens <= _number(first) <= _number(last):
        raise ValueError(f"tokens {first} to {last} of blocks from {block} on")
    most = last // block_tokens + 1
    if most > _MAX_BLOCKS:
        raise ValueError(f"{most} blocks in one group")
    return Part(GroupBlocks(block, from_runs(runs, most)), first, last)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise ValueError(f"{value!r} is no count")
    return value

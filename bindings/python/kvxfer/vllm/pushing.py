"""Prefill, push: a request's blocks are written into the room that decode has offered, layer by layer
where they are just being computed."""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import kvxfer
from kvxfer.vllm.caches import Group, RegisteredCaches
from kvxfer.vllm.early_releases import EarlyReleases
from kvxfer.vllm.errands import Answers, Sender, tell
from kvxfer.vllm.layers import StepLayers, is_microbatched
from kvxfer.vllm.log import limited, shown
from kvxfer.vllm.peers import CannotMeet, Peers
from kvxfer.vllm.reference import GroupBlocks, Worker, from_runs, workers_of
from kvxfer.vllm.settings import Settings
from kvxfer.vllm.stats import Stats
from kvxfer.vllm.step import Abandoned, Expected, Heard, Part, Write

# With each piece: its group, and how many tokens of it.
ARRIVAL = struct.Struct("<II")

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


@dataclass
class _Offer:
    contents: str
    workers: tuple[Worker, ...]
    parts: list[Part]
    block_tokens: list[int]
    seconds: float  # how long it holds, unless decode says that it still does
    begun: float
    until: float
    senders: dict[int, Sender] = field(default_factory=dict)  # ranks of decode that have made it
    names: list[str] = field(default_factory=list)  # once they were met

    @property
    def whole(self) -> bool:
        """A rank that has not made it may write that room to others, or not be met."""
        return len(self.senders) == len(self.workers)


@dataclass
class _Push:
    """From when its request is computed until nothing reads its blocks any more."""

    contents: str = ""
    request: str = ""
    offer: _Offer | None = None
    reported: bool = False  # to the scheduler, that there is one
    transfers: list[kvxfer.Transfer] = field(default_factory=list)
    unposted: int = 0  # layers that have not been computed yet
    last_write: bool = False
    abandoned: str = ""
    held: bool = False


@dataclass
class _Layer:
    """One layer of a write, until it is computed: with a flag it is posted, and waits for that; without
    it is to be posted with ``what``."""

    lease: str
    push: _Push
    what: dict[str, Any]
    flag: kvxfer.ReadyFlag | None = None


class Pushing:
    """``closes``, ``is_over`` and ``layer_is_saved`` may be called by any thread, the rest by the
    engine's."""

    def __init__(
        self,
        agent: kvxfer.Agent,
        peers: Peers,
        answers: Answers,
        groups: list[Group],
        settings: Settings,
        stats: Stats,
        early: EarlyReleases,
    ) -> None:
        self._agent = agent
        self._peers = peers
        self._early = early
        self._answers = answers
        self._settings = settings
        self._stats = stats
        self._groups = groups
        self._pushes: dict[str, _Push] = {}  # by lease
        self._unexpected: OrderedDict[str, _Offer] = OrderedDict()
        self._over: OrderedDict[str, None] = OrderedDict()  # leases that ended lately
        self._lock = threading.Lock()  # guards which leases are in _pushes, and _over
        # Of the step that is being computed, by layer. In host memory a layer is computed when vLLM has
        # saved it; on a GPU it is in the stream then, before the event of its last save.
        self._layers = StepLayers()
        self._waiting: dict[str, list[_Layer]] = {}
        self._events: dict[str, Any] = {}
        self._computing: dict[str, _Push] = {}  # by lease
        self._heard = Heard()
        self._ended: set[str] = set()
        self.caches: RegisteredCaches | None = None

    def has_any(self) -> bool:
        return bool(self._pushes)

    def peers(self) -> set[str]:
        """That it writes to, or may have to."""
        offers = [push.offer for push in self._pushes.values() if push.offer is not None]
        return {name for each in [*offers, *self._unexpected.values()] for name in each.names}

    # --- what the scheduler says ---

    def expect(self, expected: Expected) -> None:
        lease, push = expected.lease, _Push(expected.contents)
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
        try:
            for index, part in enumerate(push.offer.parts):
                first, last = max(write.first, part.first), min(write.last, part.last)
                if first < last:
                    self._write_group(push, write, index, first, last)
        except (kvxfer.Error, ValueError, TypeError, OverflowError) as error:
            self._fail(write.lease, push, str(error))

    def abandon(self, abandoned: Abandoned) -> None:
        with self._lock:
            push = self._pushes.setdefault(abandoned.lease, _Push())
        push.request = abandoned.request
        push.held = push.held or abandoned.held
        push.last_write = True
        self._fail(abandoned.lease, push, abandoned.why)

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
                transfer.wait()

    # --- what the model runner says ---

    def begin_step(self) -> None:
        """Before what is written in it."""
        self.all_is_computed()  # of the step before, should vLLM not have said so
        self._layers.begin(is_microbatched())

    def layer_is_saved(self, layer: str) -> None:
        """For some of the step's tokens, or for all."""
        if not self._computing:
            return
        assert self.caches is not None
        stream = self.caches.stream()
        if stream is not None and layer in self._waiting:
            self._events[layer] = _now_in(stream)
        computed = self._layers.saved(layer)
        if computed:
            self._send_layer(computed)

    def all_is_computed(self) -> None:
        reopened = self._layers.end()
        if reopened:
            for lease, push in self._computing.items():
                self._fail(lease, push, f"layer {reopened} was saved again after it had been sent")
        if not self._layers.layer_by_layer:
            self._events.clear()  # each is of one microbatch alone
        for layer in list(self._waiting):
            self._send_layer(layer)
        self._computing.clear()

    def _send_layer(self, layer: str) -> None:
        event = self._events.pop(layer, None)
        for waiting in self._waiting.pop(layer, ()):
            if waiting.flag is None:
                self._post_layer(waiting, event)
            elif not waiting.push.abandoned:
                waiting.flag.set()

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
                raise ValueError("ranks of one engine that offer unlike rooms")
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

    def _accept(self, lease: str, push: _Push, offer: _Offer) -> None:
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
        if offer is not None and peer in offer.names:
            tell(self._agent, peer, {"do": "alive", "lease": lease})

    def withdraw(self, sender: Sender, lease: str) -> None:
        """Answered when nothing is written for it any more."""
        self._unexpected.pop(lease, None)
        if not self.closes(sender, lease):
            self._fail(lease, self._pushes[lease], _UNWANTED)

    def closes(self, sender: Sender, lease: str) -> bool:
        """Answers that nothing is written for it, now or later, for its release is kept in the memory of
        early ones; False: something may be written, and it is no early one."""
        with self._lock:
            known, over = lease in self._pushes, lease in self._over
        if known or over:
            self._early.take(lease)
        if known:
            return False
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
            if not over and self._meet(offer) is not False:
                continue
            del self._unexpected[lease]
            self._refuse(lease, offer, _UNKNOWN)

    def take_heard(self) -> Heard:
        heard, self._heard = self._heard, Heard()
        return heard

    def take_ended(self) -> set[str]:
        ended, self._ended = self._ended, set()
        return ended

    # --- within ---

    def _introduce(self, lease: str, push: _Push) -> None:
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

    def _meet(self, offer: _Offer) -> bool | None:
        """None: not yet; False: it cannot be met."""
        if offer.names:
            return True
        try:
            offer.names = self._peers.meet(offer.workers, offer.begun) or []
        except CannotMeet as error:
            limited.warning("unreachable", "cannot reach the decode engine: %s", shown(error))
            return False
        return True if offer.names else None

    def _write_group(self, push: _Push, write: Write, index: int, first: int, last: int) -> None:
        offer = push.offer
        assert offer is not None
        assert self.caches is not None
        ours, theirs = write.groups[index], offer.parts[index].blocks
        what = self.caches.between(index, ours, theirs, offer.block_tokens[index], first, last)
        if what["local_first_token"] < 0:
            raise ValueError("a block that decode needs of a sliding window was freed")
        what |= {
            "request": f"{write.lease}#{write.number}",
            "notification": ARRIVAL.pack(index, last - first),
            "deadline": self._settings.timeout,
        }
        stream = self.caches.stream()
        if not write.computing:
            push.transfers.append(self._agent.write_blocks(offer.names, **what, stream=stream))
            return
        self._computing[write.lease] = push
        for number, layer in enumerate(self._groups[index].layers):
            of_layer = what | {"group": offer.names, "first_layer": number, "layers": 1}
            waiting = _Layer(write.lease, push, of_layer)
            if stream is None:
                waiting.flag = kvxfer.ReadyFlag()
                push.transfers.append(self._agent.write_blocks(**of_layer, ready=waiting.flag))
            else:
                push.unposted += 1
            self._waiting.setdefault(layer, []).append(waiting)

    def _post_layer(self, layer: _Layer, event: Any) -> None:
        push = layer.push
        push.unposted -= 1
        if push.abandoned:
            return
        assert self.caches is not None
        after = {"stream": self.caches.stream()} if event is None else {"event": event}
        try:
            push.transfers.append(self._agent.write_blocks(**layer.what, **after))
        except (kvxfer.Error, ValueError, TypeError, OverflowError) as error:
            self._fail(layer.lease, push, str(error))

    def _look_at_transfers(self, lease: str, push: _Push) -> None:
        # Each is asked once whether it has ended, and then how: it may end at any time.
        done = [each.done() for each in push.transfers]
        both = list(zip(push.transfers, done, strict=True))
        error = next((each.error for each, is_done in both if is_done and each.error), None)
        if error is not None:
            self._fail(lease, push, str(error))
        push.transfers = [each for each, is_done in both if not is_done]
        if push.last_write and not push.transfers and not push.unposted:
            self._end(lease, push)

    def _fail(self, lease: str, push: _Push, why: str) -> None:
        """What is on its way ends first; then decode is told."""
        if push.abandoned:
            return
        push.abandoned = why
        self._heard.withdrawn.add(lease)
        self._stats.count("failed_pushes")
        for transfer in push.transfers:
            transfer.cancel()

    def _end(self, lease: str, push: _Push) -> None:
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

    def _refuse(self, lease: str, offer: _Offer, why: str) -> None:
        for sender in offer.senders.values():
            self._answers.send(sender, {"do": "refuse", "lease": lease, "why": why})

    def _read_offer(self, sender: Sender, message: dict[str, Any]) -> _Offer:
        tokens = [_number(each) for each in message["block_tokens"]]
        if not len(message["parts"]) == len(self._groups) == len(tokens) or not all(tokens):
            raise ValueError(f"an offer of {len(tokens)} groups, not {len(self._groups)}")
        parts = [_part(*each, size) for each, size in zip(message["parts"], tokens, strict=True)]
        workers = tuple(workers_of(message))
        rank, seconds = _number(message["rank"]), float(message["seconds"])
        if rank >= len(workers) or not 0 < seconds <= 86400:
            raise ValueError(f"an offer of rank {rank} of {len(workers)}, for {seconds} s")
        at = float(message["at"])
        contents = str(message["contents"])
        return _Offer(contents, workers, parts, tokens, seconds, at, at + seconds, {rank: sender})


def _now_in(stream: Any) -> Any:
    """None: no event is to be had, and what is sent later goes after all that is in the stream then."""
    try:
        return stream.record_event()
    except RuntimeError:
        return None


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

"""A worker's half: its agent, its KV caches, and what goes on between it and other engines. All of it
is the engine's thread's, but for one thread that takes what peers say."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults

import kvxfer
from kvxfer.vllm import messages
from kvxfer.vllm.addresses import OwnAddress, with_port
from kvxfer.vllm.caches import RegisteredCaches
from kvxfer.vllm.early_releases import EarlyReleases
from kvxfer.vllm.outbox import Answers, Outbox, Sender
from kvxfer.vllm.fetching import Fetching
from kvxfer.vllm.fingerprint import layout_factors
from kvxfer.vllm.groups import Group
from kvxfer.vllm.holding import Holding
from kvxfer.vllm.kinds import Kind
from kvxfer.vllm.log import limited, logger, shown
from kvxfer.vllm.peers import Peers
from kvxfer.vllm.place import Place
from kvxfer.vllm.pushing import Pushing
from kvxfer.vllm.receiving import Receiving
from kvxfer.vllm.reference import Worker, is_address, is_name
from kvxfer.vllm.settings import Settings
from kvxfer.vllm.sources import told_by
from kvxfer.vllm.stats import Stats
from kvxfer.vllm.step import Heard, Held, Step, WorkerAddress

if TYPE_CHECKING:
    import torch

# What of a message that is not as a connector makes it comes out of reading it. A text may have halves of
# surrogates, which is a ValueError where it is to be UTF-8.
_NONSENSE = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError, AttributeError)
_IN_USE = "address_in_use"
_PAUSE_S = 0.1  # of the listener, after an error that is not a peer's


class WorkerSide:
    def __init__(
        self,
        settings: Settings,
        engine: str,
        address: OwnAddress,
        groups: Sequence[Group],
        find_kinds: Callable[[Mapping[str, torch.Tensor]], Sequence[Mapping[str, Kind]]],
        fingerprint: int,
        place: Place,
        why_no_push: str = "",
        drafts: bool = False,
        fenced: bool = False,
    ) -> None:
        """``find_kinds``: of this worker's tensors, by group and layer. ``why_no_push``: empty, or why this
        engine cannot write to decode. ``drafts``: it has a draft model with KV. ``fenced``: as of
        Fetching."""
        self.stats = Stats()
        self._settings = settings
        self._groups = groups
        self._find_kinds = find_kinds
        self._place = place
        self._fingerprint = fingerprint
        self._drafts = drafts
        # Of this life alone: two engines may have been given one id.
        name = f"{engine}:{place.worker}:{secrets.token_hex(4)}"
        self._agent = _make_agent(settings, name, address.listen)
        here = self._here = address.of(self._agent.listen_address)
        self._caches: RegisteredCaches | None = None
        peers = self._peers = Peers(
            self._agent, settings.handshake_timeout, self.stats, self._busy_peers
        )
        self._outbox = Outbox(self._agent, peers, self._hear_itself)
        self._fetching = Fetching(self._agent, peers, self._outbox, settings, self.stats, fenced)
        self._early = EarlyReleases()
        self._holding = Holding(self._agent, settings.lease, self.stats, self._early)
        self._receiving = Receiving(
            self._agent, peers, self._outbox, settings, self.stats, here
        )
        answers = Answers(self._agent, settings.handshake_timeout)
        self._pushing = Pushing(
            self._agent, peers, answers, groups, settings, self.stats, self._early, why_no_push
        )
        self._refused: set[str] = set()
        self._to_hold: list[Held] = []
        self._inbox: queue.SimpleQueue[tuple[Sender, dict[str, Any]]] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, name="kvxfer-listener", daemon=True)

    def register(self, tensors: dict[str, torch.Tensor]) -> None:
        self._caches = RegisteredCaches(
            self._agent,
            self._groups,
            self._find_kinds(tensors),
            tensors,
            self._place,
            self._fingerprint,
            self._drafts,
        )
        for part in (self._fetching, self._receiving, self._pushing, self._holding):
            part.caches = self._caches
        self._listener.start()

    def address(self) -> WorkerAddress | None:
        if self._caches is None:
            return None
        return WorkerAddress(
            Worker(self._here, self._agent.incarnation),
            self._caches.kernel_block_tokens,
            self._caches.division,
            layout_factors(self._caches.caches, self._groups, self._place.tp),
        )

    # --- each step ---

    def before_forward(self, step: Step) -> None:
        """What is to go layer by layer has to be posted before the layers are computed; but not where
        decode has just said that it wants it no more."""
        self._pushing.begin_step()
        self._hold()  # of a step that vLLM did not end, as it does not on stages that sample nothing
        for lease in step.revoked:
            self._holding.revoke(lease)
        for lease in step.confirmed:
            self._holding.confirm(lease)
        for lease in step.dropped:
            self._holding.drop(lease)
        self._to_hold = list(step.held)
        if step.writes:
            self._take_messages()
        for write in step.writes:
            self._pushing.write(write)

    def before_preemption(self, requests: list[str]) -> None:
        if requests:
            self._pushing.let_go_of(requests)

    def layer_is_saved(self, layer: str) -> None:
        self._pushing.layer_is_saved(layer)

    def all_is_computed(self, broken: str = "") -> None:
        """``broken``: empty, or why some layers may not be computed."""
        self._pushing.all_is_computed(broken)
        if broken:
            self._to_hold.clear()
        self._hold()

    def _hold(self) -> None:
        held, self._to_hold = self._to_hold, []
        if held and self._caches is not None:
            self._caches.finish_drafts()
        for each in held:
            self._holding.hold(each)

    def start(self, step: Step) -> None:
        for expected in step.expected:
            self._pushing.expect(expected)
        for abandoned in step.abandoned:
            self._pushing.abandon(abandoned)
        for fetch in step.fetches:
            self._fetching.begin(fetch)
        for offer in step.offers:
            self._receiving.begin(offer)
        for given_up in step.given_up:
            self._fetching.give_up(given_up.request, given_up.keeps_lease)
            self._receiving.give_up(given_up.request)
        for request, why in step.failed.items():
            self._fetching.fail(request, why)
            self._receiving.fail(request, why)
        caches = self._caches
        assert caches is not None
        for returned in step.returned:
            workers = told_by(caches, returned.workers, returned.division)
            self._outbox.send(workers, {"do": "return", "lease": returned.lease})
        for reference in step.wanted:
            workers = told_by(caches, reference.workers, reference.division)
            self._outbox.send(workers, {"do": "renew", "lease": reference.transfer})
        for request, why in step.refused.items():
            logger.error("kvxfer: request %s fails: %s", request, why)
            self.stats.count("refused_references")
            self._refused.add(request)

    def poll(self) -> KVConnectorTransferResults:
        self._take_messages()
        self._take_events()
        self._outbox.poll()
        self._pushing.poll()
        failed, self._refused = self._refused, set()
        loaded: set[str] = set()
        for part in (self._fetching, self._receiving):
            now_loaded, now_failed = part.poll()
            loaded |= now_loaded
            failed |= now_failed
        sent = self._holding.take_ended() | self._pushing.take_ended()
        return KVConnectorTransferResults(sent, loaded | failed, failed)

    def heard(self) -> Heard | None:
        heard = self._pushing.take_heard()
        heard.unsettled = self._receiving.take_unsettled()
        heard.unsent = self._outbox.take_change()
        return heard or None

    def _busy_peers(self) -> set[str]:
        loading = {self._peers.name(each) for each in self._fetching.workers()}
        busy = {name for name in loading if name is not None}
        return busy | self._receiving.peers() | self._pushing.peers()

    # --- what peers say ---

    def _listen(self) -> None:
        reader = messages.Reader()
        while True:
            try:
                told = self._agent.wait_notification()
            except (kvxfer.Error, UnicodeDecodeError) as error:
                if self._agent.closed:
                    return
                limited.warning("listening", "what a peer said is lost: %s", shown(error))
                time.sleep(_PAUSE_S)
                continue
            try:
                self._take(reader, told)
            except (kvxfer.Error, *_NONSENSE) as error:
                limited.warning(
                    "unreadable",
                    "%s said what cannot be read: %s",
                    shown(told.peer),
                    shown(repr(error)),
                )

    def _take(self, reader: messages.Reader, told: kvxfer.Notification) -> None:
        message = _message_of(reader, told)
        if message is None:
            return
        address = message.get("from")
        sender = Sender(told.peer, told.incarnation, address if is_address(address) else "")
        if not self._is_done_at_once(sender, message):
            message["at"] = time.monotonic()
            self._inbox.put((sender, message))

    def _is_done_at_once(self, sender: Sender, message: dict[str, Any]) -> bool:
        """An engine in a long step must not lose what it has been asked to keep; one that has nothing
        to do makes no steps, and must not keep those waiting who ask for what it does not have."""
        lease = message.get("lease")
        if not is_name(lease):
            if message.get("do") == "arrived":
                return False
            raise ValueError("a lease has no such name")
        match message.get("do"):
            case "renew":
                return self._holding.renew(lease)
            case "return":
                return self._take_back(sender, lease)
            case "offer":
                # What is held to be read is not written: the reference was altered.
                return self._pushing.is_over(sender, lease, self._holding.give_back(lease))
        return False

    def _take_back(self, sender: Sender, lease: str) -> bool:
        # Before the lease is looked for: where it comes only now, it is found here.
        self._early.add(sender.name, lease)
        if self._holding.give_back(lease):
            self._early.take(lease)
            return True
        withdrawal = {"do": "return", "lease": lease, "answered": True}
        return self._pushing.closes(sender, lease, lambda: self._inbox.put((sender, withdrawal)))

    def _hear_itself(self, message: dict[str, Any]) -> None:
        """A reference that this engine made has come back to it."""
        sender = Sender(self._agent.name, self._agent.incarnation)
        if not self._is_done_at_once(sender, message):
            self._inbox.put((sender, message | {"at": time.monotonic()}))

    def _take_messages(self) -> None:
        while True:
            try:
                sender, message = self._inbox.get_nowait()
            except queue.Empty:
                return
            try:
                self._handle(sender, message)
            except _NONSENSE as error:
                limited.warning(
                    "nonsense",
                    "%s said what makes no sense: %s",
                    shown(sender.name),
                    shown(repr(error)),
                )

    def _handle(self, sender: Sender, message: dict[str, Any]) -> None:
        match message.get("do"):
            case "arrived":
                self._receiving.arrived(message["request"], message["cache"], message["payload"])
            case "return":
                self._pushing.withdraw(sender, message["lease"], bool(message.get("answered")))
            case "renew":
                self._pushing.renew(sender.name, message["lease"], message["at"])
            case "offer":
                self._pushing.offer(sender, message)
            case "alive":
                self._receiving.alive(message["lease"])
            case "refuse":
                why = shown(message["why"], 500)
                self._receiving.refused(sender.name, message["lease"], why)
            case other:
                limited.warning(
                    "unknown",
                    "%s asked for %s, which is not known here",
                    shown(sender.name),
                    shown(repr(other)),
                )

    def _take_events(self) -> None:
        while (event := self._agent.poll_kv_event()) is not None:
            if event.kind == "lease_ended":
                self._holding.ended(event.name, event.end)
            else:
                self._receiving.lost(event.name, event.why)
        while (change := self._agent.poll_peer_event()) is not None:
            if change.kind == "lost":
                self._peers.lost(change.peer)
                self._receiving.peer_lost(change.peer)
            elif change.kind in ("joined", "back"):
                self._peers.back(change.peer)
        self._peers.sweep()

    # --- the end ---

    def close(self) -> None:
        """Waits a while for what was promised: that decode fetches what it has been told of."""
        if self._agent.closed:
            return
        try:
            if self._holding.has_any() or self._pushing.has_any():
                self._agent.drain(self._settings.drain)
        except kvxfer.Error as error:
            logger.warning("kvxfer: %s", shown(error))
        self._agent.close()


def _message_of(reader: messages.Reader, told: kvxfer.Notification) -> dict[str, Any] | None:
    if not told.request:
        return reader.read(told.peer, told.payload)
    return {
        "do": "arrived",
        "request": told.request,
        "cache": told.cache,
        "payload": told.payload,
    }


def _make_agent(settings: Settings, name: str, host: str) -> kvxfer.Agent:
    options: dict[str, Any] = dict(settings.agent_options)
    if settings.backends:
        options["backends"] = list(settings.backends)
    if settings.require_backends:
        options["require_backends"] = list(settings.require_backends)
    last: Exception | None = None
    for port in settings.ports():
        try:
            return kvxfer.Agent(name, listen=with_port(host, port), serve_metadata=True, **options)
        except kvxfer.Error as error:
            last = error
            if error.reason != _IN_USE:
                break
    taken = isinstance(last, kvxfer.Error) and last.reason == _IN_USE
    remedy = (
        'every port of "port_range" is taken'
        if settings.port_range and taken
        else f"listening at {host}"
    )
    raise ValueError(f"KvxferConnector: {remedy}: {last}") from last

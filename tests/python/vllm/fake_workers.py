"""Workers of engines to whose schedulers KvxferConnector belongs, without agents: they do what a step tells
them, copy between the memories of a paged_model, and say what workers say."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvxfer.vllm.division import Division
from kvxfer.vllm.reference import GroupBlocks, Worker
from kvxfer.vllm.step import Fetch, Heard, Offer, Step, WorkerAddress, Write
from paged_model import Memory
from vllm.v1.outputs import KVConnectorOutput


@dataclass
class Network:
    """Between the workers of all engines. What is on its way moves on by one in each step of an engine, if
    ``moves`` says so."""

    moves: Callable[[], bool] = lambda: True
    breaks: Callable[[str], bool] = lambda request: False
    """Whether the load of this request fails, when it is about to end."""
    workers: dict[Worker, "FakeWorker"] = field(default_factory=dict)

    def stop(self) -> None:
        self.moves = lambda: False

    def go_on(self) -> None:
        self.moves = lambda: True

    def shake(self, chance: random.Random, likely: float) -> None:
        self.moves = lambda: chance.random() < likely


@dataclass
class _Load:
    """Decode."""

    order: Fetch | Offer
    missing: list[int]  # tokens, of each group; of a push
    peer: "FakeWorker | None" = None
    failed: bool = False
    given_up: bool = False
    keeps_lease: bool = False
    must_fail: bool = False
    until: float = 0.0  # unless prefill says that it still works on it
    settled: bool = False  # prefill writes no more


@dataclass
class _Push:
    """Prefill."""

    contents: str = ""
    request: str = ""
    offer: Offer | None = None
    decode: "FakeWorker | None" = None
    under_way: list[Write] = field(default_factory=list)
    last_write: bool = False
    held: bool = False
    abandoned: bool = False


@dataclass
class _Lease:
    request: str
    contents: str
    until: float
    confirmed: bool


class FakeWorker:
    """One rank of an engine."""

    def __init__(
        self,
        network: Network,
        engine: str,
        rank: int,
        ranks: int,
        memory: Memory,
        block_tokens: list[int],
        lease: float,
    ) -> None:
        """``lease``: seconds."""
        self._network = network
        self._rank = rank
        self._memory = memory
        self._block_tokens = block_tokens
        self._lease = lease
        number = len(network.workers)
        worker = Worker(f"{engine}.test:{7000 + rank}", f"{number:032x}")
        network.workers[worker] = self
        division = Division(ranks, ((1,),) * len(block_tokens))
        self.address = WorkerAddress(worker, list(block_tokens), division, {})
        self.leases: dict[str, _Lease] = {}
        self.pushes: dict[str, _Push] = {}
        self.loads: dict[str, _Load] = {}  # by request
        self._leaving: dict[str, _Load] = {}
        self._offers: dict[str, tuple[Offer, FakeWorker]] = {}  # that nobody expects yet
        self._over: set[str] = set()  # leases
        self._early: set[str] = set()  # that were given back before they were granted
        self._revoked: set[str] = set()  # before they were granted
        self._unconfirmed: dict[str, str] = {}  # requests of leases that ended before
        self._refused: set[str] = set()
        self._sent: set[str] = set()
        self._heard = Heard()
        self.copied = 0  # tokens, of each group
        self.orders: list[tuple[str, str]] = []
        self.is_stopped = False
        """Then loads do not end, and what is written does not go out."""
        self.breaks = False
        """Whether all loads fail."""

    def orders_of(self, request: str) -> list[str]:
        """What it was told to do with it, in this order."""
        return [kind for kind, name in self.orders if name == request]

    def is_idle(self) -> bool:
        kept = self.leases, self.pushes, self.loads, self._leaving, self._offers
        return not any(kept) and not self._refused and not self._sent and not self._heard

    # --- a step, in the order of vLLM's model runners ---

    def before_forward(self, step: Step) -> None:
        for kind in ("held", "writes", "abandoned", "fetches", "offers"):
            self.orders += [(kind, each.request) for each in getattr(step, kind)]
        self.orders += [("refused", name) for name in step.refused]
        self.orders += [("given_up", each.request) for each in step.given_up]
        for push in self.pushes.values():
            if push.request in step.preempted:
                self._write_all(push)
        for lease in step.revoked:
            if lease not in self.leases and lease not in self._over:
                self._revoked.add(lease)
            elif lease in self.leases:
                self.give_back(lease)
        for lease in step.confirmed:
            if lease in self.leases:
                self.leases[lease].confirmed = True
            self._sent |= {self._unconfirmed.pop(lease)} if lease in self._unconfirmed else set()
        for lease in step.dropped:
            self.leases.pop(lease, None)
            self._unconfirmed.pop(lease, None)
            self._over.add(lease)
        for write in step.writes:
            self._begin_write(write)

    def after_forward(self, step: Step) -> KVConnectorOutput:
        for held in step.held:
            until = time.monotonic() + self._lease
            lease = _Lease(held.request, held.contents, until, held.confirmed)
            if held.lease in self._early or held.lease in self._revoked:
                self._end_lease(held.lease, lease)
            else:
                self.leases[held.lease] = lease
        for expected in step.expected:
            self._expect(expected.lease, expected.contents)
        for abandoned in step.abandoned:
            self._abandon(abandoned.lease, abandoned.request, abandoned.held)
        for order in (*step.fetches, *step.offers):
            missing = [part.last - part.first for part in order.parts]
            assert order.request not in self.loads, "a request is loaded twice at once"
            until = time.monotonic() + self._lease
            self.loads[order.request] = _Load(order, missing, until=until)
        for given_up in step.given_up:
            if given_up.request in self.loads:
                self.loads[given_up.request].given_up = True
                self.loads[given_up.request].keeps_lease = given_up.keeps_lease
        for request in step.failed:
            if request in self.loads:
                self.loads[request].must_fail = True
        for returned in step.returned:
            for worker in returned.workers:
                self._network.workers[worker].give_back(returned.lease)
        for reference in step.wanted:
            for worker in reference.workers:
                if self._network.workers[worker].renew(reference.transfer):
                    self._is_alive(reference.transfer)
        self._refused |= step.refused.keys()
        return self._poll()

    def _poll(self) -> KVConnectorOutput:
        now = time.monotonic()
        for name in [name for name, lease in self.leases.items() if lease.until < now]:
            self.give_back(name)
        self._move_pushes()
        loaded, failed = self._move_loads()
        failed, self._refused = failed | self._refused, set()
        sent, self._sent = self._sent, set()
        heard, self._heard = self._heard, Heard()
        return KVConnectorOutput(
            finished_sending=sent or None,
            finished_recving=loaded | failed or None,
            failed_recving=failed,
            kv_connector_worker_meta=heard or None,
        )

    def _moves(self) -> bool:
        return not self.is_stopped and self._network.moves()

    def _breaks(self, order: Fetch | Offer) -> bool:
        return self.breaks or self._network.breaks(order.request)

    # --- prefill, pull ---

    def give_back(self, lease: str) -> None:
        if lease in self.leases:
            self._end_lease(lease, self.leases.pop(lease))
        elif lease in self.pushes:
            self._fail_push(lease)
        elif lease not in self._over:
            self._early.add(lease)

    def renew(self, lease: str) -> bool:
        """Whether it is still being worked on for a push."""
        if lease in self.leases:
            self.leases[lease].until = time.monotonic() + self._lease
        if lease in self.pushes:
            self._heard.renewed.add(lease)
        return lease in self.pushes or lease in self._offers

    def expire(self) -> None:
        """All leases, as when their time is over."""
        for lease in list(self.leases):
            self.give_back(lease)

    def _end_lease(self, name: str, lease: _Lease) -> None:
        self._over.add(name)
        if lease.confirmed:
            self._sent.add(lease.request)
        else:
            self._unconfirmed[name] = lease.request

    # --- prefill, push ---

    def _expect(self, lease: str, contents: str) -> None:
        self.pushes[lease] = _Push(contents)
        if lease in self._early:
            self._fail_push(lease)
        elif lease in self._offers:
            self._accept(lease, *self._offers.pop(lease))

    def offered(self, offer: Offer, decode: "FakeWorker") -> None:
        if offer.lease in self.pushes:
            self._accept(offer.lease, offer, decode)
        elif offer.lease in self._over or offer.lease in self.leases:
            self.give_back(offer.lease)
            decode.is_refused(offer.request)
        else:
            self._offers[offer.lease] = (offer, decode)

    def _accept(self, lease: str, offer: Offer, decode: "FakeWorker") -> None:
        push = self.pushes[lease]
        if offer.contents != push.contents:
            self._fail_push(lease)
        if push.abandoned:
            decode.is_refused(offer.request)
        else:
            push.offer, push.decode = offer, decode
            self._heard.offered[lease] = 1

    def withdraw(self, offer: Offer, decode: "FakeWorker") -> None:
        """Decode wants it no more, and hears when nothing is written any more."""
        self._offers.pop(offer.lease, None)
        if offer.lease in self.pushes:
            self._fail_push(offer.lease)
        else:
            if offer.lease not in self._over:
                self._early.add(offer.lease)
            decode.is_refused(offer.request)

    def _begin_write(self, write: Write) -> None:
        push = self.pushes.get(write.lease)
        if push is None or push.offer is None:
            return
        push.request, push.last_write, push.held = write.request, write.final, write.final
        whole = write.first % max(self._block_tokens) == 0 or write.first == write.last
        assert whole, "a block is written in two parts"
        if not push.abandoned:
            push.under_way.append(write)

    def _abandon(self, lease: str, request: str, held: bool) -> None:
        push = self.pushes.setdefault(lease, _Push())
        push.request, push.held, push.last_write = request, push.held or held, True
        self._fail_push(lease)
        if lease in self._offers:
            self._accept(lease, *self._offers.pop(lease))

    def _fail_push(self, lease: str) -> None:
        push = self.pushes[lease]
        if not push.abandoned:
            push.abandoned = True
            self._heard.withdrawn.add(lease)

    def _move_pushes(self) -> None:
        for lease, push in list(self.pushes.items()):
            if push.under_way and self._moves():
                self._write_all(push)
            if push.last_write and not push.under_way:
                self._end_push(lease, push)

    def _write_all(self, push: _Push) -> None:
        for write in push.under_way:
            assert push.offer is not None
            assert push.decode is not None
            for group, part in enumerate(push.offer.parts):
                first, last = max(write.first, part.first), min(write.last, part.last)
                if first < last:
                    theirs = self, write.groups[group], self._block_tokens[group]
                    push.decode.copy(group, theirs, push.offer, first, last)
                    push.decode.has_arrived(push.offer.request, group, last - first)
        push.under_way.clear()

    def _end_push(self, lease: str, push: _Push) -> None:
        del self.pushes[lease]
        self._over.add(lease)
        if push.held:
            self._sent.add(push.request)
        if push.abandoned and push.offer is not None and push.decode is not None:
            push.decode.is_refused(push.offer.request)

    # --- decode ---

    def copy(
        self,
        group: int,
        source: "tuple[FakeWorker, GroupBlocks, int]",
        order: Fetch | Offer,
        first: int,
        last: int,
    ) -> None:
        """``source``: a worker, blocks of its, and how many tokens each has."""
        worker, theirs, their_size = source
        size = self._block_tokens[group]
        ours = order.parts[group].blocks
        for token in range(first, last):
            their_block = token // their_size - theirs.first_block
            our_block = token // size - ours.first_block
            assert their_block >= 0, "a block that is needed has left the window"
            assert our_block >= 0
            content = worker._memory.read(group, theirs.ids[their_block], token % their_size)
            assert content is not None, f"{order.request}: token {token} is sent and not there"
            self._memory.write(group, ours.ids[our_block], token % size, content)
        self.copied += last - first

    def has_arrived(self, request: str, group: int, tokens: int) -> None:
        if request in self.loads:
            self.loads[request].missing[group] -= tokens
            assert self.loads[request].missing[group] >= 0, "a token has come twice"

    def _is_alive(self, lease: str) -> None:
        for load in self.loads.values():
            if load.order.lease == lease:
                load.until = time.monotonic() + self._lease

    def is_refused(self, request: str) -> None:
        load = self.loads.get(request) or self._leaving.get(request)
        if load is not None:
            load.settled = True
            load.failed = load.failed or any(load.missing)

    def _move_loads(self) -> tuple[set[str], set[str]]:
        loaded: set[str] = set()
        failed: set[str] = set()
        for request, load in list(self.loads.items()):
            if self._is_stuck(load) or not self._network.moves():
                continue
            move = self._move_fetch if isinstance(load.order, Fetch) else self._move_offer
            if move(load):
                del self.loads[request]
                (failed if load.failed else loaded).add(request)
        for request, load in list(self._leaving.items()):
            if load.settled and self._moves():
                del self._leaving[request]
                self._count_unsettled(request, -1)
        return loaded, failed

    def _is_stuck(self, load: _Load) -> bool:
        return self.is_stopped and (isinstance(load.order, Fetch) or load.peer is not None)

    def _peer(self, order: Fetch | Offer) -> "FakeWorker":
        return self._network.workers[order.reference.workers[self._rank]]

    def _move_fetch(self, load: _Load) -> bool:
        """Whether it has ended."""
        order = load.order
        peer = self._peer(order)
        lease = peer.leases.get(order.lease)
        load.failed = load.must_fail or self._breaks(order)
        if not load.failed and not load.given_up:
            if lease is None and order.lease not in peer._over:
                return False
            load.failed = lease is None or lease.contents != order.contents
        if not load.failed and not load.given_up:
            for group, part in enumerate(order.parts):
                theirs = peer, order.reference.groups[group], order.reference.block_tokens[group]
                self.copy(group, theirs, order, part.first, part.last)
        if not load.keeps_lease:
            peer.give_back(order.lease)
        return True

    def _move_offer(self, load: _Load) -> bool:
        order = load.order
        assert isinstance(order, Offer)
        if load.peer is None and not load.given_up:
            load.peer = self._peer(order)
            load.peer.offered(order, self)
            return False
        late = time.monotonic() > load.until
        load.failed = load.failed or load.must_fail or late or self._breaks(order)
        if not (load.failed or load.given_up) and any(load.missing):
            return False
        if load.failed or load.given_up:
            self._leave(load, order)
        return True

    def _leave(self, load: _Load, order: Offer) -> None:
        if load.peer is None:
            self._peer(order).give_back(order.lease)
        if load.peer is None or load.settled:
            return
        self._leaving[order.request] = load
        load.peer.withdraw(order, self)
        self._count_unsettled(order.request, 1)

    def _count_unsettled(self, request: str, change: int) -> None:
        known = self._heard.unsettled.get(request, 0)
        self._heard.unsettled[request] = known + change

"""A rank of prefill: who asks for which request, the writes, and their end.

A request is a room of SGLang. Each rank of decode that needs a part of it asks for it ("want"), perhaps
before SGLang has the request here. When all have asked, SGLang computes and sends chunk by chunk. Each
write carries its place among those of the request, so that decode knows when it has all of them. Whatever
goes wrong ends the room: its writes are cancelled, and decode is told when none of them can land any
more.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import kvxfer
from kvxfer.sglang import wire
from kvxfer.sglang.layout import Layout, from_message
from kvxfer.sglang.log import shown, warn_of_peer
from kvxfer.sglang.memory import check_offered
from kvxfer.sglang.pairing import Copies, Plan, Refused, plan_of
from kvxfer.sglang.settings import Settings
from kvxfer.sglang.wire import Ids, Part, Want

_MAX_EARLY = 16_384
"""Rooms that decode has asked for and SGLang does not have here, of all ranks of decode together."""
_MAX_PEERS = 4096
_FORGET_LOST_S = 60.0


class Engine(Protocol):
    """What SGLang is told. Called with the lock held."""

    def asked(self, number: int, prefix: int, copies: int) -> None:
        """All have said where the request goes; decode has ``prefix`` tokens of it. ``copies``: to so
        many ranks something is written."""

    def sent(self, number: int) -> None:
        """All of it is there."""

    def failed(self, number: int, why: str) -> None: ...


@dataclass
class _Peer:
    """A rank of decode, in one life."""

    plan: Plan
    lost: float = 0.0  # since when


@dataclass(eq=False)
class _Copy:
    """What one rank of decode gets of a request."""

    peer: str
    want: Want
    heard: float  # when decode has said last that it waits for it
    parts: int = 0
    open: dict[int, kvxfer.Transfer] = field(default_factory=dict)  # by word
    over: str = ""  # why nothing more is written


@dataclass(eq=False)
class _Room:
    """Known from the first of: decode asks, SGLang has it."""

    since: float
    opened: bool = False
    copies: dict[str, _Copy] = field(default_factory=dict)  # by peer
    asked: bool = False  # by all
    last: bool = False  # the last chunk is posted
    over: str = ""  # why it has failed


class Prefill:
    """Any thread; ``lock`` guards all of it, and may be held by the caller."""

    def __init__(
        self,
        agent: kvxfer.Agent,
        layout: Layout,
        total_heads: int,
        hybrid_mla: bool,
        swa_layout: str | None,
        settings: Settings,
        engine: Engine,
        lock: threading.RLock,
    ) -> None:
        self._agent = agent
        self._layout = layout
        self._model = (total_heads, hybrid_mla, swa_layout)
        self._settings = settings
        self._engine = engine
        self._lock = lock
        self._peers: dict[str, _Peer] = {}
        self._rooms: dict[int, _Room] = {}
        self._copies: dict[tuple[str, int], _Copy] = {}  # that have not ended, by peer and request
        self._by_word: dict[int, _Copy] = {}
        self._words = itertools.count(1)

    # --- what SGLang does ---

    def open(self, number: int) -> None:
        """SGLang has the request."""
        with self._lock:
            room = self._rooms.get(number)
            if room is None or (room.over and not room.copies):
                room = self._rooms[number] = _Room(time.monotonic())
            room.opened = True
            if room.over:
                self._engine.failed(number, room.over)
            else:
                self._tell_if_asked(number, room)

    def send(
        self,
        number: int,
        pages: Ids,
        first: int,
        last: bool,
        aux: int,
        states: list[Ids],
        event: Any,
    ) -> None:
        """Pages of this rank, which are those from the ``first`` on of what decode has asked for.
        ``last``: with these, the metadata at index ``aux`` and the states go, and nothing after them.
        ``event``: nothing is read before this CUDA event; None: it is all there."""
        with self._lock:
            room = self._rooms.get(number)
            if room is None or room.over or room.last:
                return
            try:
                for copy in room.copies.values():
                    if not copy.want.dummy:
                        self._post(copy, pages, first, last, aux, states, event)
            except (kvxfer.Error, Refused) as error:
                self._fail(number, room, str(error))
                return
            room.last = last
            self._conclude(number, room)

    def fail(self, number: int, why: str) -> None:
        """SGLang gives the request up."""
        with self._lock:
            room = self._rooms.get(number)
            if room is not None:
                self._fail(number, room, why)

    def close(self, number: int) -> None:
        """SGLang has done with the request, however it went."""
        with self._lock:
            room = self._rooms.get(number)
            if room is None or not room.opened:
                return
            if not room.over and room.copies:
                self._fail(number, room, "prefill has done with the request")
            room.opened = False
            room.since = time.monotonic()
            room.copies.clear()
            if not room.over:
                del self._rooms[number]  # a failed one is kept for those who ask late

    def is_sending(self, number: int) -> bool:
        """Writes of a request may still read its pages here."""
        return any(not transfer.done() for transfer in self.transfers(number))

    def transfers(self, number: int) -> list[kvxfer.Transfer]:
        with self._lock:
            room = self._rooms.get(number)
            copies = [] if room is None else room.copies.values()
            return [transfer for copy in copies for transfer in copy.open.values()]

    # --- what comes from the agent ---

    def part(self, peer: str, part: Part) -> None:
        raise ValueError(f"a part of request {part.request}, which prefill takes none of")

    def message(self, note: kvxfer.Notification, message: dict[str, Any]) -> None:
        """ValueError: not as decode writes it."""
        with self._lock:
            if known := self._peers.get(note.peer):
                known.lost = 0.0
            match message.get("do"):
                case "hello":
                    self._greet(note, message)
                case "want":
                    self._wanted(note.peer, message)
                case "abort":
                    self._aborted(note.peer, wire.number(message, "request"))
                case "keep":
                    self._kept(note.peer, message.get("requests"))
                case other:
                    raise ValueError(f"a message {str(other)[:40]!r}")

    def ended(self, word: int, transfer: kvxfer.Transfer) -> None:
        with self._lock:
            copy = self._by_word.get(word)
            if copy is None:
                return
            room = self._rooms.get(copy.want.room)
            if transfer.state != "done" and not copy.over and room is not None:
                self._fail(copy.want.room, room, f"decode ({copy.peer}): {transfer.error}")
            if transfer.quarantined:
                return  # tick() looks again
            self._forget(word, copy)
            self._settle(copy)
            if room is not None:
                self._conclude(copy.want.room, room)

    def lost(self, peer: str, cause: str) -> None:
        with self._lock:
            if peer in self._peers:
                self._peers[peer].lost = time.monotonic()
            for (name, _), copy in list(self._copies.items()):
                room = self._rooms.get(copy.want.room)
                if name == peer and room is not None:
                    self._fail(copy.want.room, room, f"decode is gone: {cause}")

    def tick(self) -> bool:
        """Whether something is awaited, so that it is to be called again soon."""
        now = time.monotonic()
        with self._lock:
            for word, copy in list(self._by_word.items()):
                transfer = copy.open[word]
                if transfer.done() and copy.over and not transfer.quarantined:
                    self._forget(word, copy)
                    self._settle(copy)
            self._expire(now)
            self._forget_lost(now - _FORGET_LOST_S)
            return bool(self._by_word)

    # --- the parts of it ---

    def _greet(self, note: kvxfer.Notification, message: dict[str, Any]) -> None:
        try:
            self._introduce(note, message)
        except (Refused, ValueError, kvxfer.Error) as error:
            warn_of_peer("hello", "%s is not served: %s", shown(note.peer), shown(error))
            wire.tell(self._agent, note.peer, {"do": "refused", "why": str(error)[:1000]})
            return
        wire.tell(self._agent, note.peer, {"do": "welcome"})

    def _introduce(self, note: kvxfer.Notification, message: dict[str, Any]) -> None:
        name = self._agent.add_peer(wire.unpacked_bytes(message.get("metadata")))
        if name != note.peer or self._agent.explain(name).incarnation != note.incarnation:
            raise Refused(f"{note.peer} has brought the metadata of {name}")
        if message.get("version") != wire.VERSION:
            raise Refused(
                f"decode speaks version {message.get('version')}, prefill {wire.VERSION}: install "
                "the same kvxfer on both sides"
            )
        if len(self._peers) >= _MAX_PEERS:
            self._forget_lost(time.monotonic())
        if len(self._peers) >= _MAX_PEERS:
            raise Refused(f"prefill knows {_MAX_PEERS} ranks of decode already")
        layout = from_message(message.get("layout"))
        check_offered(self._agent, name, layout)
        plan = plan_of(self._layout, layout, *self._model)
        self._peers[name] = _Peer(plan)

    def _wanted(self, peer: str, message: dict[str, Any]) -> None:
        known = self._peers.get(peer)
        request = wire.number(message, "request")
        if known is None:
            # It was forgotten after a cut that decode has not noticed.
            self._tell_ended(peer, request, "prefill has not met this rank of decode", unmet=True)
            return
        try:
            want = Want.of(message, known.plan.remote)
        except ValueError as error:
            self._tell_ended(peer, request, f"decode asks for what it does not have: {error}")
            return
        if why := self._add(peer, want):
            self._tell_ended(peer, request, why)

    def _add(self, peer: str, want: Want) -> str:
        """Why it is not taken; else empty."""
        if (peer, want.request) in self._copies:
            return "decode has asked twice under one number"
        room = self._rooms.get(want.room)
        if room is not None and room.over:
            return room.over
        if room is None:
            if self._early() >= _MAX_EARLY:
                return f"{_MAX_EARLY} requests that prefill does not have are waiting here"
            room = self._rooms[want.room] = _Room(time.monotonic())
        before = room.copies.get(peer)
        if before is not None and (before.parts or room.asked):
            why = "decode has asked for it again"
            self._fail(want.room, room, why)
            return why
        if before is not None:
            self._give_up(before, "decode has asked for it again")
        if any(copy.want.ranks != want.ranks for copy in room.copies.values()):
            self._fail(want.room, room, "ranks of decode do not agree on how many ask")
            return room.over
        room.copies[peer] = self._copies[(peer, want.request)] = _Copy(peer, want, time.monotonic())
        self._tell_if_asked(want.room, room)
        return ""

    def _early(self) -> int:
        """How many rooms are known by decode alone. Failed ones give way."""
        early = [number for number, room in self._rooms.items() if not room.opened]
        if len(early) < _MAX_EARLY:
            return len(early)
        over = [number for number in early if self._rooms[number].over]
        for number in over:
            del self._rooms[number]
        return len(early) - len(over)

    def _tell_if_asked(self, number: int, room: _Room) -> None:
        wants = [copy.want for copy in room.copies.values()]
        if room.opened and not room.asked and wants and len(wants) >= wants[0].ranks:
            room.asked = True
            copies = sum(not want.dummy for want in wants)
            self._engine.asked(number, max(want.prefix for want in wants), copies)

    def _kept(self, peer: str, requests: Any) -> None:
        if not isinstance(requests, list):
            raise ValueError("no list of requests")
        for request in requests:
            copy = self._copies.get((peer, request)) if type(request) is int else None
            if copy is not None:
                copy.heard = time.monotonic()

    def _aborted(self, peer: str, request: int) -> None:
        copy = self._copies.get((peer, request))
        why = "decode has given the request up"
        if copy is None:
            self._tell_ended(peer, request, why)
            return
        room = self._rooms.get(copy.want.room)
        if room is not None and room.copies.get(peer) is copy:
            self._fail(copy.want.room, room, why)
        self._give_up(copy, why)

    def _post(
        self,
        copy: _Copy,
        pages: Ids,
        first: int,
        last: bool,
        aux: int,
        states: list[Ids],
        event: Any,
    ) -> None:
        peer = self._peers.get(copy.peer)
        if peer is None or peer.lost:
            raise Refused(f"decode ({copy.peer}) is gone")
        if time.monotonic() > copy.heard + wire.SILENT_S:
            raise Refused(f"decode ({copy.peer}) has not been heard for {wire.SILENT_S:g} s")
        writes = self._writes(peer.plan, copy.want, pages, first, last, aux, states)
        for nth, (copies, source, target) in enumerate(writes):
            total = copy.parts + 1 if last and nth == len(writes) - 1 else 0
            self._write(
                copy, copies, source, target, Part(copy.want.request, copy.parts, total), event
            )
        if last and not writes:
            part = Part(copy.want.request, copy.parts, copy.parts + 1)
            self._write(copy, None, pages, pages, part, event)

    def _write(
        self, copy: _Copy, copies: Copies | None, source: Ids, target: Ids, part: Part, event: Any
    ) -> None:
        word = next(self._words)
        deadline = self._settings.waiting_timeout
        # An event that there is none of is not named: kvxfer refuses it where there is no CUDA.
        after = {} if event is None else {"event": event}
        if copies is None:
            transfer = self._agent.notify(
                copy.peer, part.encode(), deadline=deadline, user_word=word, **after
            )
        else:
            transfer = self._agent.write(
                copy.peer,
                copies.local,
                copies.remote,
                copies.ids(source),
                copies.ids(target),
                notification=part.encode(),
                deadline=deadline,
                user_word=word,
                **after,
            )
        copy.parts += 1
        copy.open[word] = transfer
        self._by_word[word] = copy

    def _writes(
        self,
        plan: Plan,
        want: Want,
        pages: Ids,
        first: int,
        last: bool,
        aux: int,
        states: list[Ids],
    ) -> list[tuple[Copies, Ids, Ids]]:
        """What goes where; the metadata are the last."""
        there = want.pages[first : first + len(pages)]
        if len(there) != len(pages):
            raise Refused(
                f"prefill sends pages {first} to {first + len(pages)}, decode has {len(want.pages)}"
            )
        writes = []
        if len(pages) and plan.kv is not None:
            writes.append((plan.kv, pages, there))
        if not last:
            return writes
        if first + len(pages) != len(want.pages):
            raise Refused(
                f"prefill ends at page {first + len(pages)} of {len(want.pages)} of decode"
            )
        for index, copies in enumerate(plan.states):
            source = states[index] if index < len(states) else wire.indices(None)
            target = want.states[index]
            if len(source) != len(target):
                kind = self._layout.states[index].kind
                raise Refused(
                    f'state "{kind}": prefill has {len(source)} items of it, decode {len(target)}'
                )
            if copies is not None and len(source):
                writes.append((copies, source, target))
        if plan.aux is not None and plan.aux.local:
            writes.append((plan.aux, wire.indices([aux]), wire.indices([want.aux])))
        return writes

    def _fail(self, number: int, room: _Room, why: str) -> None:
        if room.over:
            return
        room.over = why or "unknown"
        if room.opened:
            self._engine.failed(number, room.over)
        for copy in list(room.copies.values()):
            self._give_up(copy, room.over)

    def _give_up(self, copy: _Copy, why: str) -> None:
        if not copy.over:
            copy.over = why or "unknown"
            for transfer in list(copy.open.values()):
                transfer.cancel()
        self._settle(copy)

    def _settle(self, copy: _Copy) -> None:
        """Tells decode, once, when nothing of a copy that was given up can land any more."""
        key = (copy.peer, copy.want.request)
        if copy.over and not copy.open and self._copies.pop(key, None) is not None:
            self._tell_ended(copy.peer, copy.want.request, copy.over)

    def _conclude(self, number: int, room: _Room) -> None:
        if room.over or not room.last or any(copy.open for copy in room.copies.values()):
            return
        for copy in room.copies.values():
            self._copies.pop((copy.peer, copy.want.request), None)
        room.copies.clear()
        self._engine.sent(number)

    def _forget(self, word: int, copy: _Copy) -> None:
        del self._by_word[word]
        del copy.open[word]

    def _tell_ended(self, peer: str, request: int, why: str, unmet: bool = False) -> None:
        known = self._peers.get(peer)
        if known is None or not known.lost:
            message = {"do": "ended", "request": request, "why": why[:1000], "unmet": unmet}
            wire.tell(self._agent, peer, message)

    def _expire(self, now: float) -> None:
        limit = now - self._settings.bootstrap_timeout
        for number, room in list(self._rooms.items()):
            if room.opened or room.since > limit:
                continue
            if not room.over:
                seconds = self._settings.bootstrap_timeout
                self._fail(
                    number, room, f"prefill has had no request of room {number} for {seconds:g} s"
                )
            del self._rooms[number]

    def _forget_lost(self, before: float) -> None:
        """A rank of decode whose connection was cut may come again."""
        busy = {peer for peer, _ in self._copies}
        for name, peer in list(self._peers.items()):
            if not 0.0 < peer.lost < before or name in busy:
                continue
            del self._peers[name]
            try:
                self._agent.remove_peer(name)
            except kvxfer.NotFound:
                pass

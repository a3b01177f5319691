"""A rank of prefill: who asks for which request, the writes, and their end.

A request is a room of SGLang. Each rank of decode that needs a part of it asks for it ("want"), perhaps
before SGLang has the request here. When all have asked, SGLang computes and sends chunk by chunk. Each
write carries its place among those of the request, so that decode knows when it has all of them. Whatever
goes wrong ends the room: its writes are cancelled, and decode is told when none of them can land any
more.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import kvxfer
from kvxfer.sglang import wire
from kvxfer.sglang.decoders import Decoders, Model
from kvxfer.sglang.layout import Layout
from kvxfer.sglang.pairing import Refused
from kvxfer.sglang.settings import Settings
from kvxfer.sglang.wire import Part, Want
from kvxfer.sglang.writing import Chunk, Copy, Writer

_MAX_EARLY = 16_384
"""Rooms that decode has asked for and SGLang does not have here, of all ranks of decode together."""


class Engine(Protocol):
    """What SGLang is told. Called with the lock held."""

    def asked(self, number: int, prefix: int, copies: int) -> None:
        """All have said where the request goes; decode has ``prefix`` tokens of it. ``copies``: to so
        many ranks something is written."""

    def sent(self, number: int) -> None:
        """All of it is there."""

    def failed(self, number: int, why: str) -> None: ...


@dataclass(eq=False)
class _Room:
    """Known from the first of: decode asks, SGLang has it."""

    since: float
    opened: bool = False
    copies: dict[str, Copy] = field(default_factory=dict)  # by peer
    asked: bool = False  # by all
    last: bool = False  # the last chunk is posted
    over: str = ""  # why it has failed


class Prefill:
    """Any thread; ``lock`` guards all of it, and may be held by the caller."""

    def __init__(
        self,
        agent: kvxfer.Agent,
        layout: Layout,
        model: Model,
        settings: Settings,
        engine: Engine,
        lock: threading.RLock,
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._engine = engine
        self._lock = lock
        self._decoders = Decoders(agent, layout, model)
        self._writer = Writer(agent, layout, settings.waiting_timeout)
        self._rooms: dict[int, _Room] = {}
        self._copies: dict[tuple[str, int], Copy] = {}  # that have not ended, by peer and request

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

    def expect(self, number: int, pages: int) -> None:
        """So many will be sent."""
        with self._lock:
            room = self._rooms.get(number)
            for copy in [] if room is None else list(room.copies.values()):
                if room is not None and len(copy.want.pages) != pages:
                    there = len(copy.want.pages)
                    self._fail(
                        number, room, f"prefill has {pages} pages to send, decode has {there}"
                    )

    def send(self, number: int, chunk: Chunk) -> None:
        with self._lock:
            room = self._rooms.get(number)
            if room is None or room.over or room.last:
                return
            try:
                for copy in room.copies.values():
                    if not copy.want.dummy:
                        self._post(copy, chunk)
            except (kvxfer.Error, Refused) as error:
                self._fail(number, room, str(error))
                return
            room.last = chunk.last
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
            self._decoders.heard(note.peer)
            match message.get("do"):
                case "hello":
                    self._decoders.greet(note, message, self._busy())
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
            copy = self._writer.of(word)
            if copy is None:
                return
            room = self._rooms.get(copy.want.room)
            if transfer.state != "done" and not copy.over and room is not None:
                self._fail(copy.want.room, room, f"decode ({copy.peer}): {transfer.error}")
            if transfer.quarantined:
                return  # tick() looks again
            self._writer.forget(word)
            self._settle(copy)
            if room is not None:
                self._conclude(copy.want.room, room)

    def lost(self, peer: str, cause: str) -> None:
        with self._lock:
            self._decoders.lost(peer)
            for (name, _), copy in list(self._copies.items()):
                room = self._rooms.get(copy.want.room)
                if name == peer and room is not None:
                    self._fail(copy.want.room, room, f"decode is gone: {cause}")

    def tick(self) -> bool:
        """Whether something is awaited, so that it is to be called again soon."""
        now = time.monotonic()
        with self._lock:
            for word, copy in self._writer.quiet():
                self._writer.forget(word)
                self._settle(copy)
            self._expire(now)
            self._decoders.sweep(self._busy())
            return not self._writer.is_idle()

    # --- the parts of it ---

    def _busy(self) -> set[str]:
        return {peer for peer, _ in self._copies}

    def _wanted(self, peer: str, message: dict[str, Any]) -> None:
        plan = self._decoders.plan(peer)
        request = wire.number(message, "request")
        if plan is None:
            # It was forgotten after a cut that decode has not noticed.
            self._tell_ended(peer, request, "prefill has not met this rank of decode", unmet=True)
            return
        try:
            want = Want.of(message, plan.remote)
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
        room.copies[peer] = self._copies[(peer, want.request)] = Copy(peer, want, time.monotonic())
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

    def _post(self, copy: Copy, chunk: Chunk) -> None:
        plan = self._decoders.plan(copy.peer)
        if plan is None:
            raise Refused(f"decode ({copy.peer}) is gone")
        if time.monotonic() > copy.heard + wire.SILENT_S:
            raise Refused(f"decode ({copy.peer}) has not been heard for {wire.SILENT_S:g} s")
        self._writer.post(copy, plan, chunk)

    def _fail(self, number: int, room: _Room, why: str) -> None:
        if room.over:
            return
        room.over = why or "unknown"
        if room.opened:
            self._engine.failed(number, room.over)
        for copy in list(room.copies.values()):
            self._give_up(copy, room.over)

    def _give_up(self, copy: Copy, why: str) -> None:
        if not copy.over:
            copy.over = why or "unknown"
            for transfer in list(copy.open.values()):
                transfer.cancel()
        self._settle(copy)

    def _settle(self, copy: Copy) -> None:
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

    def _tell_ended(self, peer: str, request: int, why: str, unmet: bool = False) -> None:
        if not self._decoders.is_lost(peer):
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

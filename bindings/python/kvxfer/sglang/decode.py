"""A rank of decode: where its requests go, what has arrived, and when nothing of them can arrive any
more.

Each attempt at a request has a number that is never used again, so that what comes late is known as
such. An attempt is *quiet* when nothing of it that has begun can land, and *settled* when moreover no
rank of prefill will begin anything: it has said so, or it is gone and has not heard from here for so long
that it would not."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import kvxfer
from kvxfer.sglang import wire
from kvxfer.sglang.layout import Layout
from kvxfer.sglang.log import logger, shown, warn_of_peer
from kvxfer.sglang.meetings import Find, Meeting, Meetings, Route
from kvxfer.sglang.settings import Settings
from kvxfer.sglang.wire import Ids, Part, Want

_AGAIN_S = 0.5
_NOT_ASKED = -1


class Engine(Protocol):
    """What SGLang is told. Called with the lock held."""

    def met(self, number: int) -> None:
        """All ranks of prefill that the request needs are known."""

    def arrived(self, number: int) -> None: ...

    def failed(self, number: int, why: str) -> None: ...

    def prefill_gone(self, bootstrap: str) -> None:
        """What is known of that engine may be wrong now."""


@dataclass(eq=False)
class _Rank:
    """Of prefill, for one attempt."""

    meeting: Meeting
    dummy: bool
    name: str
    parts: int = 0
    whole: bool = False
    ended: bool = False  # it writes nothing more
    gone: float = 0.0  # since when its connections are lost
    question: int = _NOT_ASKED  # a token of quiesce
    quiet: bool = False  # nothing that has begun can land
    kept: float = 0.0  # when it was last told that this is awaited
    told: float = 0.0  # when it was last told to stop


@dataclass(eq=False)
class _Attempt:
    number: int
    room: int
    ranks: list[_Rank]
    over: str = ""
    since: float = 0.0  # when it has failed

    def is_quiet(self) -> bool:
        return all(rank.ended or rank.quiet for rank in self.ranks)


class Decode:
    """Any thread; ``lock`` guards all of it, and may be held by the caller."""

    def __init__(
        self,
        agent: kvxfer.Agent,
        layout: Layout,
        settings: Settings,
        engine: Engine,
        lock: threading.RLock,
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._engine = engine
        self._lock = lock
        self._meetings = Meetings(agent, layout, settings, lock, self._meeting_done)
        self._waiting: dict[int, set[Meeting]] = {}  # for whom, by room
        self._attempts: dict[int, _Attempt] = {}  # that are not settled
        self._by_number: dict[int, set[int]] = {}  # numbers of attempts, by room
        self._numbers = itertools.count(1)
        self._words = itertools.count(1)
        self._by_word: dict[int, tuple[_Attempt, _Rank]] = {}

    # --- what SGLang does ---

    def meet(self, number: int, routes: Sequence[tuple[Route, Find]]) -> list[Meeting]:
        """The ranks of prefill that a request needs."""
        with self._lock:
            found = [self._meetings.meet(route) for route, _ in routes]
            meetings = [meeting for meeting, _ in found]
            waiting = {each for each in meetings if not each.met}
            for meeting in waiting:
                meeting.waiting.add(number)
            if waiting:
                self._waiting[number] = waiting
            else:
                self._engine.met(number)
            for (meeting, new), (_, find) in zip(found, routes, strict=True):
                if new:
                    self._meetings.look_for(meeting, find)
            return meetings

    def ask(
        self,
        number: int,
        ranks: Sequence[tuple[Meeting, bool]],
        pages: Ids,
        aux: int,
        states: Sequence[Ids],
        prefix: int,
        asking: int,
    ) -> None:
        """Says where a request goes. ``ranks``: those that were met, and whether they have nothing to
        write. ``asking``: the ranks of decode that ask each of them."""
        with self._lock:
            attempt = _Attempt(
                next(self._numbers),
                number,
                [_Rank(meeting, dummy, meeting.name, ended=dummy) for meeting, dummy in ranks],
            )
            self._attempts[attempt.number] = attempt
            self._by_number.setdefault(number, set()).add(attempt.number)
            for rank in attempt.ranks:
                want = Want(
                    attempt.number, number, pages, aux, tuple(states), prefix, asking, rank.dummy
                )
                if attempt.over or not self._want(attempt, rank, want):
                    rank.ended = True  # it does not know of it
            self._drop_if_settled(attempt)

    def give_up(self, number: int, why: str) -> None:
        """SGLang has done with the request, before all has arrived."""
        with self._lock:
            for meeting in self._waiting.pop(number, ()):
                meeting.waiting.discard(number)
            for key in list(self._by_number.get(number, ())):
                self._fail(self._attempts[key], why)

    def is_draining(self, number: int) -> bool:
        """Something of a request that has failed may still land, and it is not long ago."""
        with self._lock:
            return any(
                attempt.over
                and not attempt.is_quiet()
                and time.monotonic() < attempt.since + 2 * self._settings.quiet_timeout
                for attempt in self._of(number)
            )

    def is_settled(self, number: int) -> bool:
        with self._lock:
            return not self._by_number.get(number)

    # --- what comes from the agent ---

    def part(self, peer: str, part: Part) -> None:
        with self._lock:
            attempt = self._attempts.get(part.request)
            rank = None if attempt is None else _rank_of(attempt, peer)
            if attempt is None or attempt.over or rank is None or rank.dummy or rank.whole:
                return
            rank.parts += 1
            if not part.total:
                return
            if part.index + 1 != part.total or rank.parts != part.total:
                return  # one before it has failed: prefill says why
            rank.whole = rank.ended = True
            if all(each.whole or each.dummy for each in attempt.ranks):
                self._remove(attempt)
                self._engine.arrived(attempt.room)

    def message(self, note: kvxfer.Notification, message: dict[str, Any]) -> None:
        """ValueError: not as prefill writes it."""
        with self._lock:
            match message.get("do"):
                case "welcome":
                    self._meetings.answered(note.peer, "")
                case "refused":
                    self._meetings.answered(note.peer, f"prefill refuses: {wire.why_of(message)}")
                case "ended":
                    request = wire.number(message, "request")
                    if message.get("unmet") is True and (met := self._meetings.of(note.peer)):
                        self._meetings.drop(met)
                    self._rank_ended(note.peer, request, wire.why_of(message))
                case other:
                    raise ValueError(f"a message {str(other)[:40]!r}")

    def ended(self, word: int, transfer: kvxfer.Transfer) -> None:
        """Of a message that says where a request goes."""
        with self._lock:
            found = self._by_word.pop(word, None)
            if found is None or transfer.state == "done":
                return
            attempt, rank = found
            if attempt.number in self._attempts:
                self._meetings.drop(rank.meeting)
                if isinstance(transfer.error, kvxfer.PeerLost | kvxfer.FailedPrecondition):
                    rank.gone = rank.gone or time.monotonic()
                self._fail(attempt, f"prefill ({rank.name}) cannot be told: {transfer.error}")

    def lost(self, peer: str, cause: str) -> None:
        with self._lock:
            meeting = self._meetings.of(peer)
            if meeting is None:
                return
            self._meetings.drop(meeting)
            self._engine.prefill_gone(meeting.route.bootstrap)
            why = f"prefill ({peer}) is gone: {cause}"
            if not meeting.met:
                self._meeting_done(meeting, why)
            for attempt in list(self._attempts.values()):
                rank = _rank_of(attempt, peer)
                if rank is not None and not rank.ended:
                    rank.gone = rank.gone or time.monotonic()
                    self._fail(attempt, why)
            self._forget_if_unused(meeting)

    def tick(self) -> bool:
        """Whether something is awaited, so that it is to be called again soon."""
        now = time.monotonic()
        with self._lock:
            self._meetings.tick(now)
            self._keep(now)
            for attempt in list(self._attempts.values()):
                if attempt.over:
                    self._drain(attempt, now)
            return any(attempt.over for attempt in self._attempts.values())

    # --- the parts of it ---

    def _of(self, number: int) -> list[_Attempt]:
        return [self._attempts[key] for key in self._by_number.get(number, ())]

    def _meeting_done(self, meeting: Meeting, why: str) -> None:
        waiting, meeting.waiting = meeting.waiting, set()
        for number in waiting:
            others = self._waiting.get(number)
            if others is None:
                continue
            others.discard(meeting)
            if why:
                del self._waiting[number]
                self._engine.failed(number, why)
            elif not others:
                del self._waiting[number]
                self._engine.met(number)

    def _want(self, attempt: _Attempt, rank: _Rank, want: Want) -> bool:
        def words() -> Iterator[int]:
            while True:
                word = next(self._words)
                self._by_word[word] = (attempt, rank)
                yield word

        rank.kept = time.monotonic()
        error = wire.tell(self._agent, rank.name, want.message(), words())
        if error is None:
            return True
        self._meetings.drop(rank.meeting)
        self._fail(attempt, f"prefill ({rank.name}) cannot be told: {error}")
        return False

    def _keep(self, now: float) -> None:
        due: dict[str, list[tuple[int, _Rank]]] = {}
        for attempt in self._attempts.values():
            for rank in attempt.ranks:
                if not attempt.over and not rank.ended and now > rank.kept + wire.KEEP_S:
                    due.setdefault(rank.name, []).append((attempt.number, rank))
        for name, awaited in due.items():
            for _, rank in awaited:
                rank.kept = now
            requests = [number for number, _ in awaited]
            wire.tell(self._agent, name, {"do": "keep", "requests": requests})

    def _rank_ended(self, peer: str, request: int, why: str) -> None:
        attempt = self._attempts.get(request)
        rank = None if attempt is None else _rank_of(attempt, peer)
        if attempt is None or rank is None:
            return
        rank.ended = True
        self._fail(attempt, why)
        self._drop_if_settled(attempt)

    def _fail(self, attempt: _Attempt, why: str) -> None:
        if attempt.over:
            return
        attempt.over = why or "unknown"
        attempt.since = time.monotonic()
        self._engine.failed(attempt.room, attempt.over)
        self._drain(attempt, attempt.since)

    def _drain(self, attempt: _Attempt, now: float) -> None:
        for rank in attempt.ranks:
            if not rank.whole and (not rank.ended or rank.dummy):
                self._stop(attempt, rank, now)
        self._drop_if_settled(attempt)

    def _stop(self, attempt: _Attempt, rank: _Rank, now: float) -> None:
        if rank.gone:
            self._look_whether_quiet(rank)
            # It was told long ago for the last time that this is awaited: it begins nothing more.
            silent = rank.kept + 1.1 * wire.TELL_S + wire.SILENT_S
            rank.ended = rank.ended or (rank.quiet and now > silent)
        elif not rank.dummy and now > attempt.since + self._settings.quiet_timeout:
            self._cut_off(rank, now)
            return
        if not rank.told or (not rank.ended and now >= rank.told + _AGAIN_S):
            rank.told = now
            wire.tell(self._agent, rank.name, {"do": "abort", "request": attempt.number})

    def _cut_off(self, rank: _Rank, now: float) -> None:
        warn_of_peer(
            "cut",
            "%s does not say that it writes no more: the connection to it is cut",
            shown(rank.name),
        )
        rank.gone = now
        self._meetings.forget(rank.meeting)
        self._engine.prefill_gone(rank.meeting.route.bootstrap)
        self._look_whether_quiet(rank)
        for other in list(self._attempts.values()):
            its = _rank_of(other, rank.name)
            if its is not None and its is not rank and not its.ended:
                its.gone = its.gone or now
                self._fail(other, f"prefill ({rank.name}) does not answer")

    def _look_whether_quiet(self, rank: _Rank) -> None:
        if rank.quiet:
            return
        try:
            if rank.question == _NOT_ASKED:
                rank.question = self._agent.quiesce(rank.name, timeout=0.0).token
            rank.quiet = rank.question == 0 or self._agent.is_quiet(rank.question)
        except kvxfer.NotFound:
            rank.quiet = True  # answered before
        except kvxfer.Error as error:  # as many are asked as can be at once
            logger.debug("kvxfer: %s: %s", shown(rank.name), shown(error))

    def _drop_if_settled(self, attempt: _Attempt) -> None:
        if attempt.over and all(rank.ended for rank in attempt.ranks):
            self._remove(attempt)

    def _remove(self, attempt: _Attempt) -> None:
        if self._attempts.pop(attempt.number, None) is None:
            return
        numbers = self._by_number[attempt.room]
        numbers.discard(attempt.number)
        if not numbers:
            del self._by_number[attempt.room]
        for rank in attempt.ranks:
            if rank.gone:
                self._forget_if_unused(rank.meeting)

    def _forget_if_unused(self, meeting: Meeting) -> None:
        if not any(_rank_of(attempt, meeting.name) for attempt in self._attempts.values()):
            self._meetings.forget(meeting)


def _rank_of(attempt: _Attempt, peer: str) -> _Rank | None:
    return next((rank for rank in attempt.ranks if rank.name == peer), None)

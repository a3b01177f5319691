"""Ranks of prefill, met by decode: found by SGLang's bootstrap server, then told who this is. Finding
one takes a thread of its own, so that an engine that does not answer delays nobody but the requests
that are for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import kvxfer
from kvxfer.sglang import wire
from kvxfer.sglang.layout import Layout, to_message
from kvxfer.sglang.log import logger, shown
from kvxfer.sglang.settings import Settings

_MAX_UNDER_WAY = 64

Find = Callable[[], str]
"""The address of its agent, "host:port", from the bootstrap server. May raise anything."""


@dataclass(frozen=True)
class Route:
    """A rank of prefill, as its bootstrap server names it."""

    bootstrap: str
    dp: int
    cp: int
    tp: int
    pp: int


@dataclass(eq=False)
class Meeting:
    route: Route
    since: float
    name: str = ""  # of its agent; empty: not found yet
    met: bool = False
    waiting: set[int] = field(default_factory=set)  # rooms


class Meetings:
    """Called with the lock held, unless said otherwise."""

    def __init__(
        self,
        agent: kvxfer.Agent,
        layout: Layout,
        settings: Settings,
        lock: threading.RLock,
        done: Callable[[Meeting, str], None],
    ) -> None:
        """``done``: a rank is met, or why not; then it is forgotten."""
        self._agent = agent
        self._layout = layout
        self._settings = settings
        self._lock = lock
        self._done = done
        self._known: dict[Route, Meeting] = {}
        self._by_name: dict[str, Meeting] = {}
        self._under_way = 0

    def meet(self, route: Route) -> tuple[Meeting, bool]:
        """It, and whether it is new: then ``look_for`` it. ``done`` comes for those not ``met``."""
        meeting = self._known.get(route)
        if meeting is not None:
            return meeting, False
        meeting = self._known[route] = Meeting(route, time.monotonic())
        return meeting, True

    def look_for(self, meeting: Meeting, find: Find) -> None:
        if why := self._begin(meeting, find):
            self.drop(meeting)
            self._done(meeting, why)

    def _begin(self, meeting: Meeting, find: Find) -> str:
        """Why it cannot be looked for; else empty."""
        if self._under_way >= _MAX_UNDER_WAY:
            return f"{_MAX_UNDER_WAY} ranks of prefill are being looked for already"
        thread = threading.Thread(
            target=self._look, args=(meeting, find), name="kvxfer-meeting", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            return f"{error}: this engine has as many threads as it may (ulimit -u)"
        self._under_way += 1
        return ""

    def of(self, name: str) -> Meeting | None:
        return self._by_name.get(name)

    def every(self) -> list[Meeting]:
        return list(self._known.values())

    def answered(self, name: str, why: str) -> None:
        """``why``: it refuses; empty: it is welcome."""
        meeting = self._by_name.get(name)
        if meeting is None or meeting.met:
            return
        if why:
            self.forget(meeting)
        meeting.met = not why
        self._done(meeting, why)

    def drop(self, meeting: Meeting) -> None:
        """To be met anew, should it be named again."""
        if self._known.get(meeting.route) is meeting:
            del self._known[meeting.route]

    def forget(self, meeting: Meeting) -> None:
        """Nothing of it can come any more. Not if its agent was met anew."""
        self.drop(meeting)
        if not meeting.name or self._by_name.get(meeting.name) is not meeting:
            return
        del self._by_name[meeting.name]
        with contextlib.suppress(kvxfer.NotFound):
            self._agent.remove_peer(meeting.name)

    def tick(self, now: float) -> None:
        limit = 3 * self._settings.meeting_timeout  # the bootstrap server, the agent, its answer
        for meeting in self.every():
            if not meeting.met and now > meeting.since + limit:
                self.forget(meeting)
                self._done(meeting, f"prefill has not answered for {limit:g} s")

    def _look(self, meeting: Meeting, find: Find) -> None:
        """Without the lock, on a thread of its own."""
        why = ""
        try:
            address = find()
            metadata = kvxfer.fetch_metadata(address, self._settings.meeting_timeout)
            with self._lock:
                self._greet(meeting, metadata)
        except Exception as error:  # whatever HTTP, JSON and kvxfer raise
            why = f"prefill rank {meeting.route} is not found: {shown(error)}"
            logger.debug("kvxfer: %s", why)
        with self._lock:
            self._under_way -= 1
            if why and self._known.get(meeting.route) is meeting:
                self.forget(meeting)
                self._done(meeting, why)

    def _greet(self, meeting: Meeting, metadata: bytes) -> None:
        if self._known.get(meeting.route) is not meeting:
            return  # given up meanwhile
        meeting.name = self._agent.add_peer(metadata)
        self._by_name[meeting.name] = meeting
        hello: dict[str, Any] = {
            "do": "hello",
            "version": wire.VERSION,
            "layout": to_message(self._layout),
            "metadata": wire.packed_bytes(self._agent.metadata()),
        }
        if error := wire.tell(self._agent, meeting.name, hello):
            raise error

"""``await transfer`` and ``async for notification in agent.notifications()``.

Both watch a descriptor of the library by the running event loop: no thread of kvxfer ever calls into
Python, and no thread of Python waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvxfer._errors import Closed

if TYPE_CHECKING:
    from kvxfer._kvxfer import Agent, Notification, Transfer

# Seconds between looks at a transfer whose agent is being closed, which ends it soon.
_CLOSING = 0.001


class _Ends:
    """The ends of one agent's transfers that tasks wait for, in any event loop. They come as events
    of the agent's queue (``Transfer._watch``), each with the transfer's id; every loop that waits
    watches a descriptor of the queue."""

    def __init__(self, agent: Agent) -> None:
        self._agent = weakref.ref(agent)
        self._lock = threading.Lock()
        self._futures: dict[int, set[asyncio.Future[None]]] = {}  # by transfer id; by _lock
        # A loop keeps its reader, which does not keep the loop.
        self._readers: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, weakref.ref[_Reader]
        ] = weakref.WeakKeyDictionary()

    async def wait(self, transfer: Transfer) -> None:
        """Returns when the transfer has ended; perhaps before, while the agent is being closed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        key = transfer.id
        with self._lock:
            self._futures.setdefault(key, set()).add(future)
        try:
            if self._listen(loop) and transfer._watch():
                await future
            else:
                await asyncio.sleep(_CLOSING)
        finally:
            with self._lock:
                waiting = self._futures.get(key, set())
                waiting.discard(future)
                if not waiting:
                    self._futures.pop(key, None)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> bool:
        """False: the agent is being closed, or gone."""
        agent = self._agent()
        if agent is None:
            return False
        known = self._readers.get(loop)
        reader = None if known is None else known()
        if reader is not None:
            return reader.open
        try:
            reader = _Reader(loop, agent._watched_fd, self.take)
        except Closed:
            return False
        self._readers[loop] = weakref.ref(reader)
        return True

    def take(self) -> bool:
        """Wakes those whose transfers have ended. False, and all are woken: the agent is closed."""
        agent = self._agent()
        try:
            ended = None if agent is None else agent._take_watched()
        except Closed:
            ended = None
        with self._lock:
            keys = list(self._futures) if ended is None else ended
            futures = [each for key in keys for each in self._futures.pop(key, ())]
        for future in futures:
            _wake(future)
        return ended is not None


class _Reader:
    """Calls ``take`` in one loop while the descriptor, of which it has a duplicate, is readable."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, take: Callable[[], bool]) -> None:
        self.open = True
        self._take = take
        self._fd = os.dup(fd)
        weakref.finalize(self, os.close, self._fd)
        loop.add_reader(self._fd, self._fire)

    def _fire(self) -> None:
        if not self._take():
            # A duplicate stays readable once the agent is gone.
            self.open = False
            asyncio.get_running_loop().remove_reader(self._fd)


def _wake(future: asyncio.Future[None]) -> None:
    def finish() -> None:
        if not future.done():
            future.set_result(None)

    loop = future.get_loop()
    if loop is asyncio.get_running_loop():
        return finish()
    with contextlib.suppress(RuntimeError):  # that loop is closed
        loop.call_soon_threadsafe(finish)


_of_agents: weakref.WeakKeyDictionary[Agent, _Ends] = weakref.WeakKeyDictionary()
_of_agents_lock = threading.Lock()


async def wait(transfer: Transfer) -> None:
    """Returns when the transfer is done, and raises its end otherwise. Cancelling the task does not
    cancel the transfer: that is for ``transfer.cancel()``."""
    while not transfer.done():
        agent = transfer._agent
        if agent is None:
            await asyncio.sleep(_CLOSING)
            continue
        with _of_agents_lock:
            ends = _of_agents.get(agent)
            if ends is None:
                ends = _of_agents[agent] = _Ends(agent)
        del agent  # a task that waits does not keep it open
        await ends.wait(transfer)
    error = transfer.error
    if error is not None:
        raise error


class Notifications:
    """An asynchronous iterator over an agent's notifications, which ends when the agent is closed.
    Several of one agent, and several tasks of one iterator, share what comes."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._readable: asyncio.Future[None] | None = None
        # Of its own, for a loop watches a descriptor once.
        self._fd = os.dup(agent.notification_fd)
        weakref.finalize(self, os.close, self._fd)

    def __aiter__(self) -> Notifications:
        return self

    async def __anext__(self) -> Notification:
        while True:
            try:
                # One: what was taken and not handed out would be lost with the iterator.
                told = self._agent.poll_notification()
            except Closed:
                raise StopAsyncIteration from None
            if told is not None:
                return told
            # The duplicate becomes readable when the agent is closed, too.
            await self._next()

    def _next(self) -> asyncio.Future[None]:
        """Done when something may have come. The loop keeps the iterator, and its descriptor open,
        until then."""
        loop = asyncio.get_running_loop()
        waiting = self._readable
        if waiting is None or waiting.done() or waiting.get_loop() is not loop:
            waiting = self._readable = loop.create_future()
            loop.add_reader(self._fd, self._fire, loop, waiting)
        return waiting

    def _fire(self, loop: asyncio.AbstractEventLoop, waiting: asyncio.Future[None]) -> None:
        loop.remove_reader(self._fd)
        if not waiting.done():
            waiting.set_result(None)

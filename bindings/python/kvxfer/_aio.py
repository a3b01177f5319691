"""``await transfer`` and ``async for notification in agent.notifications()``.

Both watch a descriptor of the library by the running event loop: no thread of kvxfer ever calls into
Python, and no thread of Python waits.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvxfer import _kvxfer
from kvxfer._errors import Closed

if TYPE_CHECKING:
    from kvxfer._kvxfer import Agent, Notification, Transfer


class _Ends:
    """The ends, of transfers and agents, that one event loop waits for. The loop keeps it, by its
    reader; it does not keep the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = _kvxfer._EndQueue()
        self._keys = itertools.count()
        self._futures: dict[int, asyncio.Future[None]] = {}
        self._closed: weakref.WeakKeyDictionary[Agent, asyncio.Future[None]]
        self._closed = weakref.WeakKeyDictionary()
        loop.add_reader(self._queue.fd, self._take)

    def future(self, watch: Callable[[_kvxfer._EndQueue, int], None]) -> asyncio.Future[None]:
        key = next(self._keys)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures[key] = future
        future.add_done_callback(lambda _: self._futures.pop(key, None))
        watch(self._queue, key)
        return future

    def closed(self, agent: Agent) -> asyncio.Future[None]:
        future = self._closed.get(agent)
        if future is None:
            future = self._closed[agent] = self.future(agent._watch_close)
        return future

    def _take(self) -> None:
        for key in self._queue.pop():
            future = self._futures.get(key)
            if future is not None and not future.done():
                future.set_result(None)


_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Ends]]
_of_loops = weakref.WeakKeyDictionary()


def _ends() -> _Ends:
    loop = asyncio.get_running_loop()
    known = _of_loops.get(loop)
    ends = None if known is None else known()
    if ends is None:
        ends = _Ends(loop)
        _of_loops[loop] = weakref.ref(ends)
    return ends


async def wait(transfer: Transfer) -> None:
    """Returns when the transfer is done, and raises its end otherwise. Cancelling the task does not
    cancel the transfer: that is for ``transfer.cancel()``."""
    while not transfer.done():
        await _ends().future(transfer._watch)
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
            closed = _ends().closed(self._agent)
            await asyncio.wait({self._next(), closed}, return_when=asyncio.FIRST_COMPLETED)

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

"""``await transfer`` and ``async for notification in agent.notifications()``.

Both watch a descriptor of the library by the running event loop: no thread of kvxfer ever calls into
Python, and no thread of Python waits.
"""

from __future__ import annotations

import asyncio
import collections
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
    """The ends, of transfers and agents, that one event loop waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue = _kvxfer._EndQueue()
        self._keys = itertools.count()
        self._futures: dict[int, asyncio.Future[None]] = {}
        self._closed: weakref.WeakKeyDictionary[Agent, asyncio.Future[None]]
        self._closed = weakref.WeakKeyDictionary()
        loop.add_reader(self._queue.fd, self._take)

    def future(self, watch: Callable[[_kvxfer._EndQueue, int], None]) -> asyncio.Future[None]:
        key = next(self._keys)
        future: asyncio.Future[None] = self._loop.create_future()
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


_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Ends]
_of_loops = weakref.WeakKeyDictionary()


def _ends() -> _Ends:
    loop = asyncio.get_running_loop()
    ends = _of_loops.get(loop)
    if ends is None:
        ends = _of_loops[loop] = _Ends(loop)
    return ends


async def wait(transfer: Transfer) -> None:
    """Returns when the transfer is done, and raises its end otherwise. Cancelling the task does not
    cancel the transfer: that is for ``transfer.cancel()``."""
    if not transfer.done():
        await _ends().future(transfer._watch)
    error = transfer.error
    if error is not None:
        raise error


class Notifications:
    """An asynchronous iterator over an agent's notifications, which ends when the agent is closed.
    Several of one agent share what comes."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._taken: collections.deque[Notification] = collections.deque()
        # Of its own, for a loop watches a descriptor once.
        self._fd = os.dup(agent.notification_fd)
        weakref.finalize(self, os.close, self._fd)

    def __aiter__(self) -> Notifications:
        return self

    async def __anext__(self) -> Notification:
        while not self._taken:
            try:
                self._taken.extend(self._agent.poll_notifications(64))
                if not self._taken:
                    await self._wait()
            except Closed:
                raise StopAsyncIteration from None
        return self._taken.popleft()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        closed = _ends().closed(self._agent)
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._fd, lambda: readable.done() or readable.set_result(None))
        try:
            await asyncio.wait({readable, closed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(self._fd)
            readable.cancel()

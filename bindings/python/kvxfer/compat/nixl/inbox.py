"""An agent's notifications: sent, whole again where they came in parts, and handed out."""

import logging
import threading
from collections import deque
from typing import Any

from kvxfer import _errors

from .errors import (
    from_kvxfer,
    nixl_error,
    nixlInvalidParamError,
)
from .messages import MOST_MESSAGE_BYTES, Joiner, Splitter
from .reach import REMEDY
from .remotes import Remote, Remotes

logger = logging.getLogger("kvxfer.compat.nixl")

# A peer that is believed to be lost is asked for so long, in seconds, before a call says so.
_DOUBT = 0.25
_CONNECT = 10.0  # seconds until a connection that was asked for is given up
_MOST_WATCHED = 4096


class Inbox:
    """Thread-safe. Kvxfer's agent is given by the caller, for it comes with the first backend."""

    def __init__(self, remotes: Remotes) -> None:
        self._remotes = remotes
        self._splitter = Splitter()
        self._joiner = Joiner()
        self._own: deque[bytes] = deque()
        self._sent: deque[Any] = deque(maxlen=_MOST_WATCHED)
        # One at a time takes notifications, so that parts are joined in their order.
        self._taking = threading.RLock()
        self._watching = threading.Lock()

    def tell_self(self, message: bytes) -> None:
        self._own.append(message)

    @staticmethod
    def check(message: bytes) -> None:
        """nixlInvalidParamError: too long."""
        if len(message) > MOST_MESSAGE_BYTES:
            raise nixl_error(
                nixlInvalidParamError,
                f"the notification has {len(message)} bytes; expected at most {MOST_MESSAGE_BYTES}",
            )

    def send(self, agent: Any, remote: Remote, message: bytes, deadline: float) -> None:
        """nixlInvalidParamError: too long. nixlRemoteDisconnectError: it is known to be gone."""
        self.check(message)
        for part in self._splitter.split(message):
            self._notify(agent, remote, part, deadline)

    def send_before(self, agent: Any, peer: str, message: bytes, deadline: float) -> bytes:
        """Sends all parts of a transfer's message but the last, which goes with the transfer."""
        self.check(message)
        *parts, last = self._splitter.split(message)
        for part in parts:
            agent.notify(peer, part, deadline=deadline)
        return last

    def greet(self, agent: Any, remote: Remote) -> None:
        """Begins to connect; does not wait."""
        self._notify(agent, remote, Splitter.greeting(), _CONNECT)

    def _notify(self, agent: Any, remote: Remote, part: bytes, deadline: float) -> None:
        self.watch(agent)
        try:
            posted = agent.notify(remote.name, part, deadline=deadline)
            if remote.lost:
                posted.wait(_DOUBT)
                remote.lost = ""
        except _errors.StillActive:
            pass
        except _errors.Error as error:
            raise from_kvxfer(error, remote.hint) from error
        self._sent.append(posted)

    def watch(self, agent: Any) -> None:
        """Notes which agents are gone, and logs which notifications did not arrive."""
        while (event := agent.poll_peer_event()) is not None:
            remote = self._remotes.find(event.peer)
            if remote is None or remote.incarnation != event.incarnation:
                continue
            if event.kind == "lost":
                remote.lost = str(event.cause)
                logger.warning("agent %s is lost: %s", event.peer, event.cause)
            elif event.kind != "suspect":
                remote.lost = ""
        # One thread is enough, and is not waited for.
        if not self._watching.acquire(blocking=False):
            return
        try:
            self._look_at_sent()
        finally:
            self._watching.release()

    def _look_at_sent(self) -> None:
        while self._sent and self._sent[0].done():
            posted = self._sent.popleft()
            if posted.error is not None:
                logger.warning(
                    "a notification to agent %s did not arrive: %s (%s)",
                    posted.peer,
                    posted.error,
                    REMEDY,
                )

    def take(self, own_name: str, agent: Any, into: dict[str, list[bytes]]) -> None:
        """Adds what has come, by sender."""
        with self._taking:
            self.watch(agent)
            while batch := agent.poll_notifications():
                for note in batch:
                    message = self._joiner.join(note.peer, note.incarnation, note.payload)
                    if message is not None:
                        into.setdefault(note.peer, []).append(message)
            while self._own:
                into.setdefault(own_name, []).append(self._own.popleft())

    def forget(self, name: str) -> None:
        with self._taking:
            self._joiner.forget(name)

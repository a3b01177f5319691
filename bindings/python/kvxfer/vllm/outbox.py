"""Messages to engines that may still have to be met. Who cannot be met is not told: a lease that is
neither renewed nor given back ends by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import kvxfer
from kvxfer.vllm import messages
from kvxfer.vllm.log import limited, logger, shown
from kvxfer.vllm.peers import CannotMeet, Peers
from kvxfer.vllm.reference import Worker

_MAX_ANSWERS = 16  # under way to agents that are met for them; others have to do without


@dataclass(frozen=True)
class _Queued:
    worker: Worker
    message: dict[str, Any]
    since: float


class Outbox:
    def __init__(
        self, agent: kvxfer.Agent, peers: Peers, to_self: Callable[[dict[str, Any]], None]
    ) -> None:
        """``to_self`` takes messages to this agent: a proxy may send a reference back to the engine that
        made it."""
        self._agent = agent
        self._peers = peers
        self._to_self = to_self
        self._waiting: list[_Queued] = []
        self._known = 0  # of them, to the scheduler

    def send(
        self, workers: Sequence[Worker], message: dict[str, Any], since: float | None = None
    ) -> None:
        """``since``: as of Peers.meet, where the sender has waited for them before."""
        since = time.monotonic() if since is None else since
        # Each by itself: one that cannot be met keeps nothing from the others.
        self._waiting += self._not_done([_Queued(worker, message, since) for worker in workers])

    def take_change(self) -> int:
        """How many more wait than when it was last called: until they are sent the engine has to go on
        stepping."""
        change = len(self._waiting) - self._known
        self._known = len(self._waiting)
        return change

    def poll(self) -> None:
        self._waiting = self._not_done(self._waiting)

    def _not_done(self, messages: list[_Queued]) -> list[_Queued]:
        """One that may not even be begun with means that no other may that has to be: finding that out
        takes a look at all who are known, which is not for each of a thousand in every step."""
        left: list[_Queued] = []
        crowded = False
        for queued in messages:
            if crowded and self._is_new(queued):
                left.append(queued)
            elif not self._done(queued):
                left.append(queued)
                crowded = crowded or self._is_new(queued)
        return left

    def _is_new(self, queued: _Queued) -> bool:
        to_self = queued.worker.incarnation == self._agent.incarnation
        return not to_self and self._peers.is_new(queued.worker, queued.since)

    def _done(self, queued: _Queued) -> bool:
        message = queued.message
        if queued.worker.incarnation == self._agent.incarnation:
            self._to_self(message)
            return True
        try:
            names = self._peers.meet([queued.worker], queued.since)
        except CannotMeet as error:
            # Who waits for them has a line of its own.
            logger.debug("kvxfer: cannot %s %s: %s", message["do"], message["lease"], shown(error))
            return True
        if names is None:
            return False
        for name in names:
            tell(self._agent, name, message)
        return True


@dataclass(frozen=True)
class Sender:
    """Who has said something, and perhaps where it can be met."""

    name: str
    incarnation: str
    address: str = ""


class Answers:
    """Answers a sender that may not have been met yet. Any thread."""

    def __init__(self, agent: kvxfer.Agent, timeout: float) -> None:
        self._agent = agent
        self._timeout = timeout
        self._free = threading.Semaphore(_MAX_ANSWERS)

    def send(self, sender: Sender, message: dict[str, Any]) -> None:
        if self._is_known(sender):
            tell(self._agent, sender.name, message)
        elif sender.address and self._free.acquire(blocking=False):
            answering = threading.Thread(
                target=self._meet_and_tell,
                args=(sender.address, message),
                name="kvxfer-answer",
                daemon=True,
            )
            try:
                answering.start()
            except RuntimeError as error:  # the process has as many threads as it may
                self._free.release()
                limited.warning("threads", "%s gets no answer: %s", shown(sender.name), error)

    def _is_known(self, sender: Sender) -> bool:
        try:
            return self._agent.explain(sender.name).incarnation == sender.incarnation
        except kvxfer.Error:
            return False

    def _meet_and_tell(self, address: str, message: dict[str, Any]) -> None:
        try:
            name = self._agent.add_peer(kvxfer.fetch_metadata(address, self._timeout))
            tell(self._agent, name, message)
        except kvxfer.Error as error:
            logger.debug("kvxfer: cannot answer %s: %s", address, shown(error))
        finally:
            self._free.release()


def tell(
    agent: kvxfer.Agent, peer: str, message: dict[str, Any], stream: Any = None
) -> list[kvxfer.Transfer]:
    """Does not wait, and does not fail: what depends on an answer has a time-out, or looks what
    becomes of what is on its way. It is told after what is in ``stream``."""
    told: list[kvxfer.Transfer] = []
    try:
        told.extend(agent.notify(peer, piece, stream=stream) for piece in messages.encode(message))
    except (kvxfer.Error, ValueError) as error:
        limited.warning(
            "not told", "%s was not told to %s: %s", shown(peer), message["do"], shown(error)
        )
    return told


def first_error(told: Sequence[kvxfer.Transfer]) -> Exception | None:
    """Of messages that could not be brought."""
    return next((each.error for each in told if each.error is not None), None)

"""The thread that waits for what an agent has to tell, and hands it to the side of this rank."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import kvxfer
from kvxfer.sglang.log import logger, shown, warn_of_peer
from kvxfer.sglang.wire import Part
from kvxfer.vllm.messages import Reader

_SOON_S = 0.05
_LATER_S = 0.5
_END_S = 5.0


class Side(Protocol):
    def part(self, peer: str, part: Part) -> None: ...
    def message(self, note: kvxfer.Notification, message: dict[str, Any]) -> None: ...
    def ended(self, word: int, transfer: kvxfer.Transfer) -> None: ...
    def lost(self, peer: str, cause: str) -> None: ...
    def tick(self) -> bool: ...


class Listener:
    def __init__(self, agent: kvxfer.Agent, side: Side) -> None:
        self._agent = agent
        self._side = side
        self._reader = Reader()
        self._thread = threading.Thread(target=self._run, name="kvxfer-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Closes the agent, which wakes the thread, and waits for its end."""
        self._agent.close()
        if self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def _run(self) -> None:
        soon = False
        while not self._agent.closed:
            try:
                for event in self._events(_SOON_S if soon else _LATER_S):
                    self._handle(event)
                soon = self._side.tick()
            except kvxfer.Closed:
                return
            except Exception:  # a bug: the other requests go on
                logger.exception("kvxfer: the listener goes on after an error")

    def _events(self, seconds: float) -> list[Any]:
        try:
            return self._agent.wait_events(seconds, ["notification", "transfer_end", "peer"])
        except kvxfer.TimedOut:
            return []

    def _handle(self, event: Any) -> None:
        match event:
            case kvxfer.Notification():
                self._notification(event)
            case kvxfer.TransferEnd():
                self._side.ended(event.user_word, event.transfer)
            case kvxfer.PeerEvent() if event.kind == "lost" and not _by_ourselves(event):
                self._side.lost(event.peer, shown(event.cause))

    def _notification(self, note: kvxfer.Notification) -> None:
        part = Part.of(note.payload)
        try:
            if part is not None:
                self._side.part(note.peer, part)
                return
            message = self._reader.read(note.peer, note.payload)
            if message is not None:
                self._side.message(note, message)
        except ValueError as error:
            warn_of_peer("malformed", "%s: %s", shown(note.peer), shown(error))


def _by_ourselves(event: kvxfer.PeerEvent) -> bool:
    """The peer was removed here, and may have been met anew since."""
    return isinstance(event.cause, kvxfer.Cancelled)

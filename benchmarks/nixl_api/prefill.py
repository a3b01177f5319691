"""The side that owns the blocks: it is read from, and told."""

import base64
import time
from typing import Any

from agent_side import AgentSide
from clock import Patience, Seen, now

_NAP_S = 1e-3


class Prefill(AgentSide):
    _decode = ""

    def __init__(self, api: Any, options: dict, seen: Seen) -> None:
        super().__init__(api, options, seen)
        self.cache.fill()

    def know_decode(self, metadata: str) -> None:
        self._decode = self.know(base64.b64decode(metadata))

    def answer(self, count: int) -> None:
        """Each of so many notifications by one of its own, at once."""
        patience = Patience(f"waiting for {count} notifications", 120)
        while count > 0:
            for some in self.agent.get_new_notifs().values():
                for note in some:
                    self.agent.send_notif(self._decode, note)
                    count -= 1
            patience.check()

    def serve(self, count: int, idle: bool) -> None:
        """Until so many notifications have come. ``idle``: asleep but for a look each
        millisecond; else an engine's loop that is busy, and looks at each step."""
        self._seen.begin()
        patience = Patience(f"waiting for {count} notifications", 120)
        while self._seen.count < count:
            notes = self.agent.get_new_notifs()
            if notes:
                at = now()
                for note in (note for some in notes.values() for note in some):
                    self._seen.put(int(note), at)
            elif idle:
                time.sleep(_NAP_S)
            patience.check()

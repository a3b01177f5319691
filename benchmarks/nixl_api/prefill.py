"""The side that owns the blocks: it is read from, and told."""

import time
from typing import Any

from agent_side import AgentSide
from clock import Patience, Seen, now

_NAP_S = 1e-3


class Prefill(AgentSide):
    def __init__(self, api: Any, options: dict, seen: Seen) -> None:
        super().__init__(api, options, seen)
        self.cache.fill()

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

"""The side that reads: makes transfers, posts them and polls until they are done."""

import base64
import random
import time
from typing import Any

import numpy as np
from agent_side import AgentSide
from clock import Failure, Patience, now

_STEP_S = 200e-6
_LONGEST_REST_S = 2e-3


class Decode(AgentSide):
    """Orders are methods; times are nanoseconds."""

    _local: Any = None
    _remote: Any = None
    _peer = ""

    def _prepare(self) -> None:
        self._local = self.prepare_list("", self.cache.rows(self.cache.bases))

    def drop(self) -> None:
        self._local = self._remote = None
        super().drop()

    def _read(self, local: np.ndarray, remote: np.ndarray, number: int) -> list[int]:
        """One request: when it began, was made, was posted, was known to be done."""
        agent, message = self.agent, b"%d" % number
        began = now()
        handle = agent.make_prepped_xfer("READ", self._local, local, self._remote, remote, message)
        made = now()
        state = agent.transfer(handle)
        posted = now()
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        done = now()
        if state != "DONE":
            raise Failure(f"the transfer ended as {state}")
        agent.release_xfer_handle(handle)
        return [began, made, posted, done]

    def _rest(self, number: int, seconds: float) -> int:
        """An engine between two requests: at least ``seconds``, until prefill saw the last one's
        notification. Returns when it did."""
        patience = Patience("the notification of a transfer that was done")
        end = time.monotonic() + seconds
        while self._seen.count <= number or time.monotonic() < end:
            self.agent.get_new_notifs()
            time.sleep(_STEP_S)
            patience.check()
        return self._seen.at(number)

    def meet(self, metadata: str, bases: list[int], ours: list[int], theirs: list[int]) -> dict:
        """All that a fresh agent does for its first request, but making itself."""
        blob, rows = base64.b64decode(metadata), self.cache.rows(bases)
        local, remote = self.cache.descriptors(ours), self.cache.descriptors(theirs)
        began = now()
        self._peer = name = self.know(blob)
        added = now()
        self._remote = self.prepare_list(name, rows)
        prepared = now()
        _, made, posted, done = self._read(local, remote, 0)
        seen = self._rest(0, 0)
        self.check(ours, theirs)
        return {
            "add": added - began, "prepare": prepared - added, "make": made - prepared,
            "post": posted - made, "poll": done - posted, "known": done - prepared,
            "all": done - began, "told": seen - prepared,
        }  # fmt: skip

    def requests(self, ids: list[list[list[int]]], seed: int) -> dict:
        """One for each pair of block ids, the first of which is checked and not counted."""
        rng = random.Random(seed)
        parts = ("make", "post", "poll", "known", "told")
        answer: dict[str, list[int]] = {part: [] for part in parts}
        for number, (ours, theirs) in enumerate(ids):
            local, remote = self.cache.descriptors(ours), self.cache.descriptors(theirs)
            if number == 0:
                self.cache.clear(ours)
            began, made, posted, done = self._read(local, remote, number)
            seen = self._rest(number, rng.uniform(0, _LONGEST_REST_S))
            if number == 0:
                self.check(ours, theirs)
                continue
            times = (made - began, posted - made, done - posted, done - began, seen - began)
            for part, took in zip(parts, times):
                answer[part].append(took)
        return answer

    def round_trips(self, count: int) -> dict:
        """Writes of one block, each answered by a notification; the first half is not counted."""
        one = np.zeros(1, dtype=np.int32)
        times = [self._round_trip(one, b"%d" % number) for number in range(2 * count)]
        return {"answered": times[count:]}

    def _round_trip(self, one: np.ndarray, message: bytes) -> int:
        agent, patience = self.agent, Patience("an answer")
        began = now()
        handle = agent.make_prepped_xfer("WRITE", self._local, one, self._remote, one, message)
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        while not (notes := agent.get_new_notifs()):
            patience.check()
        took = now() - began
        if state != "DONE" or [message] not in notes.values():
            raise Failure(f"the transfer ended as {state}, the answer was {notes}")
        agent.release_xfer_handle(handle)
        return took

    def submit_lists(self, bases: list[int], ours: list[int], theirs: list[int]) -> dict:
        """Descriptors from arrays, in the order given, by initialize_xfer."""
        agent = self.agent
        here, there = self.cache.rows(self.cache.bases)[ours], self.cache.rows(bases)[theirs]
        began = now()
        local, remote = self.descriptors(here), self.descriptors(there)
        listed = now()
        handle = agent.initialize_xfer("READ", local, remote, self._peer, b"0")
        made = now()
        state = agent.transfer(handle)
        posted = now()
        done = self._until_done(handle, state)
        return {"list": listed - began, "make": made - listed, "post": posted - made,
                "submit": posted - began, "known": done - began}  # fmt: skip

    def submit_indices(self, ours: list[int], theirs: list[int]) -> dict:
        """The same of prepared lists."""
        agent = self.agent
        here, there = np.array(ours, dtype=np.int32), np.array(theirs, dtype=np.int32)
        began = now()
        handle = agent.make_prepped_xfer("READ", self._local, here, self._remote, there, b"0")
        made = now()
        state = agent.transfer(handle)
        posted = now()
        done = self._until_done(handle, state)
        return {"make": made - began, "post": posted - made, "submit": posted - began,
                "known": done - began}  # fmt: skip

    def clear(self, ours: list[int]) -> None:
        self.cache.clear(ours)

    def check(self, ours: list[int], theirs: list[int]) -> None:
        if wrong := self.cache.wrong(ours, theirs):
            raise Failure(wrong)

    def _until_done(self, handle: Any, state: str) -> int:
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        done = now()
        if state != "DONE":
            raise Failure(f"the transfer ended as {state}")
        self.agent.release_xfer_handle(handle)
        self._rest(0, 0)
        return done

"""When prefill saw which notification: a page that both processes share.

CLOCK_MONOTONIC is one clock for all processes, so that times of both sides may be subtracted.
"""

import mmap
import time

import numpy as np

PAGE_BYTES = 1 << 16


class Failure(Exception):
    """Ends the process; its text is what the runner shows."""


def now() -> int:
    return time.monotonic_ns()


class Seen:
    """Written by prefill alone: a count, and behind it the time of each."""

    def __init__(self, descriptor: int) -> None:
        self._words = np.frombuffer(mmap.mmap(descriptor, PAGE_BYTES), dtype=np.int64)

    def begin(self) -> None:
        self._words[0] = 0

    def put(self, number: int, at: int) -> None:
        self._words[1 + number] = at
        self._words[0] += 1

    @property
    def count(self) -> int:
        return int(self._words[0])

    def at(self, number: int) -> int:
        return int(self._words[1 + number])


class Patience:
    """A loop asks it now and then whether to go on."""

    def __init__(self, what: str, seconds: float = 60.0) -> None:
        self._what = what
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise Failure(f"{self._what} took more than a minute")

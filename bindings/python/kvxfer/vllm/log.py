"""The connector's lines among those of vLLM, by its settings. What peers, proxies and clients say is
escaped and cut, and what a peer can cause at will is limited."""

from __future__ import annotations

import threading
import time

from vllm.logger import init_logger

logger = init_logger("vllm.kvxfer")

_MOST_SHOWN = 300
_PERIOD_S = 10.0
_LINES = 5  # of one cause in a period


def shown(what: object, most: int = _MOST_SHOWN) -> str:
    """As one line of at most about ``most`` characters that a terminal only prints."""
    text = str(what)
    kept = text if len(text) <= most else text[:most] + "..."
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in kept
    )


class Limited:
    """Warnings that a peer can cause: ``lines`` of one cause in ``period`` seconds. The next one after
    that says how many were left out. Any thread. ``cause`` is one of a few constants."""

    def __init__(self, lines: int = _LINES, period: float = _PERIOD_S) -> None:
        self._most, self._period = lines, period
        self._lock = threading.Lock()
        self._causes: dict[str, tuple[float, int]] = {}  # since when, how many since

    def warning(self, cause: str, format: str, *args: object) -> None:
        left_out = self._count(cause)
        if left_out is None:
            return
        more = f" ({left_out} like this were left out before)" if left_out else ""
        logger.warning("kvxfer: " + format + "%s", *args, more)

    def _count(self, cause: str) -> int | None:
        """How many were left out before this one; None: this one is, too."""
        now = time.monotonic()
        with self._lock:
            since, count = self._causes.get(cause, (now, 0))
            if now < since + self._period:
                self._causes[cause] = (since, count + 1)
                return 0 if count < self._most else None
            self._causes[cause] = (now, 1)
            return max(0, count - self._most)


limited = Limited()

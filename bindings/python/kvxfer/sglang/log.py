"""The backend's lines among those of SGLang. What peers say is escaped and cut, and what a peer can
cause at will is limited."""

from __future__ import annotations

import logging
import threading
import time

logger = logging.getLogger("sglang.srt.disaggregation.kvxfer")

_MOST_SHOWN = 300
_PERIOD_S = 10.0
_LINES = 5  # of one cause in a period

_lock = threading.Lock()
_causes: dict[str, tuple[float, int]] = {}  # since when, how many since


def shown(what: object, most: int = _MOST_SHOWN) -> str:
    """As one line of at most about ``most`` characters that a terminal only prints."""
    text = str(what)
    kept = text if len(text) <= most else text[:most] + "..."
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in kept
    )


def warn_of_peer(cause: str, format: str, *args: object) -> None:
    """At most five lines of one cause in ten seconds. ``cause`` is one of a few constants."""
    now = time.monotonic()
    with _lock:
        since, count = _causes.get(cause, (now, 0))
        if now >= since + _PERIOD_S:
            since, count = now, 0
        _causes[cause] = (since, count + 1)
    if count < _LINES:
        logger.warning("kvxfer: " + format, *args)

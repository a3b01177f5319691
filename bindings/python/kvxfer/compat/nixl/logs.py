"""Loggers, as NIXL names them. What is logged goes where the application sends it: no handler is
installed here. The drop-in itself logs as ``kvxfer.compat.nixl``."""

import logging
import threading

logger = logging.getLogger("kvxfer.compat.nixl")

_warned: set[str] = set()
_lock = threading.Lock()


def get_logger(name: str) -> logging.Logger:
    return logging.getLogger(f"nixl.{name.lstrip('_')}")


def warn_once(about: str, text: str) -> None:
    """Once in this process for each ``about``."""
    with _lock:
        if about in _warned:
            return
        _warned.add(about)
    logger.warning("%s", text)

"""What the drop-in reads of the environment: here, and nowhere else in it."""

import logging
import os

logger = logging.getLogger("kvxfer.compat.nixl")

_DEADLINE = 600.0
_LONGEST = 365 * 24 * 3600
_YES = ("y", "yes", "on", "1", "true", "enable")
_NO = ("n", "no", "off", "0", "false", "disable")


def own(name: str) -> str:
    """A variable of kvxfer, as in own("BACKENDS"). Empty: not set, or empty."""
    return os.environ.get(f"KVXFER_{name}", "")


def ucx() -> dict[str, str]:
    """All variables of UCX that have a value, by name."""
    return {k: v for k, v in os.environ.items() if k.startswith("UCX_") and v.strip()}


def deadline() -> float:
    """KVXFER_NIXL_DEADLINE: seconds after which a transfer ends, for kvxfer's all do."""
    text = own("NIXL_DEADLINE")
    if not text:
        return _DEADLINE
    try:
        seconds = float(text)
        if not 0 < seconds < _LONGEST:
            raise ValueError
        return seconds
    except ValueError:
        logger.warning("KVXFER_NIXL_DEADLINE is %r; expected seconds. Using %g", text, _DEADLINE)
        return _DEADLINE


def host_of(address: str) -> str:
    """Of "host:port", "[v6]:port"."""
    return address.rpartition(":")[0].strip("[]")


def listen_host() -> str:
    """The host of KVXFER_LISTEN, else loopback."""
    return host_of(own("LISTEN")) or "127.0.0.1"


def telemetry(asked: bool) -> bool:
    """NIXL_TELEMETRY_ENABLE, where it is set, goes before what the program asked for."""
    said = os.environ.get("NIXL_TELEMETRY_ENABLE", "").lower()
    return said in _YES or (asked and said not in _NO)

"""The options of the backend. SGLang gives a transfer backend none of its own, so they come from the
environment; what is wrong among them is refused by name when the engine starts."""

from __future__ import annotations

import os
from dataclasses import dataclass

_PORTS = "SGLANG_KVXFER_PORT_RANGE"
_QUIET = "SGLANG_KVXFER_QUIET_TIMEOUT"


@dataclass(frozen=True)
class Settings:
    """Times in seconds."""

    ports: tuple[int, ...] = (0,)
    """Where the agent listens, to be tried in turn; 0: any that is free."""
    quiet_timeout: float = 5.0
    """How long decode waits for prefill to say that it writes no more of a request that has failed;
    then it cuts the connection."""
    meeting_timeout: float = 5.0
    """For each step of meeting a prefill worker."""
    waiting_timeout: float = 300.0
    """SGLang's SGLANG_DISAGGREGATION_WAITING_TIMEOUT: for one write."""
    bootstrap_timeout: float = 300.0
    """SGLang's SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT: how long prefill keeps what decode asks for
    while it does not have the request itself."""

    @staticmethod
    def of(waiting_timeout: float, bootstrap_timeout: float) -> Settings:
        """ValueError names the variable, and what it should be."""
        return Settings(
            ports=_ports(os.environ.get(_PORTS, "")),
            quiet_timeout=_seconds(_QUIET, 5.0),
            waiting_timeout=max(1.0, waiting_timeout),
            bootstrap_timeout=max(1.0, bootstrap_timeout),
        )


def _ports(text: str) -> tuple[int, ...]:
    if not text:
        return (0,)
    first, _, last = text.partition("-")
    if first.isdecimal() and (last or first).isdecimal():
        ports = range(int(first), min(int(last or first), 65535) + 1)
        if ports and ports[0] > 0:
            return tuple(ports)
    raise ValueError(f'{_PORTS} is {text!r}, not "first-last", from 1 to 65535')


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 3600:
        raise ValueError(f"{name} is {text!r}, not a number of seconds above 0 and at most 3600")
    return seconds

"""Ports for servers that a test starts. They lie below those that the kernel gives to sockets that ask for
any, so that no other socket has one by the time the server binds it."""

import random
import socket
from pathlib import Path

_FIRST = 20000


def free_port(*further: int) -> int:
    """One that is free, as are those so much further on."""
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    end = min(int(text.split()[0]), 32768) - max(further, default=0)
    while True:
        port = random.randrange(_FIRST, end)
        if all(_is_free(port + more) for more in (0, *further)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

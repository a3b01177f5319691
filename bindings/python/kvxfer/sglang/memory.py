"""The agent of a rank, with the memory that SGLang's KVArgs name."""

from __future__ import annotations

import os
import secrets
from typing import Any, Literal

import kvxfer
from kvxfer.sglang.layout import Layout
from kvxfer.sglang.settings import Settings

_Kind = Literal["host", "cuda"]


def make_agent(role: str, host: str, settings: Settings) -> kvxfer.Agent:
    """One of a name that no other life of it has. ValueError: it cannot listen."""
    name = f"sglang-{role}-{os.getpid()}-{secrets.token_hex(8)}"
    address = f"[{host}]" if ":" in host else host
    last: kvxfer.Error | None = None
    for port in settings.ports:
        try:
            return kvxfer.Agent(name, listen=f"{address}:{port}", serve_metadata=True)
        except kvxfer.Error as error:
            last = error
    raise ValueError(
        f"kvxfer.sglang: no agent that listens at {host}, on any port of SGLANG_KVXFER_PORT_RANGE "
        f"(SGLANG_HOST_IP names the address): {last}"
    ) from last


def kind_of_device(device: str) -> _Kind:
    """ValueError: kvxfer takes no memory of such a device."""
    if device == "cpu":
        return "host"
    if device == "cuda":
        return "cuda"
    raise ValueError(
        f"kvxfer.sglang: --device is {device!r}: kvxfer moves memory of cpu and cuda; use another "
        "--disaggregation-transfer-backend"
    )


def register(agent: kvxfer.Agent, layout: Layout, kind: _Kind, device: int, access: Any) -> None:
    """K, V and states lie on the device, the metadata buffers in host memory."""
    on_device = [*layout.kv, *(entry for state in layout.states for entry in state.entries)]
    number = device if kind == "cuda" else 0
    for address, length in sorted({(each.address, each.bytes) for each in on_device}):
        agent.register_memory(kvxfer.RawMemory(address, length, kind, number), access)
    for address, length in sorted({(each.address, each.bytes) for each in layout.aux}):
        agent.register_memory(kvxfer.RawMemory(address, length), access)


def check_offered(agent: kvxfer.Agent, peer: str, layout: Layout) -> None:
    """ValueError: a buffer that the peer names is not within memory that it lets others write."""
    offered = [
        (each.address, each.address + each.bytes)
        for each in agent.regions(peer)
        if each.access in ("write", "read_write")
    ]
    for entry in layout.every_entry():
        end = entry.address + entry.bytes
        if not any(first <= entry.address and end <= last for first, last in offered):
            raise ValueError(f"{entry.bytes} bytes at {entry.address:#x} are not offered")

"""kvxfer as a transfer backend of SGLang: prefill and decode apart, the KV cache moved by kvxfer.

    python -m sglang.launch_server --model MODEL --disaggregation-mode prefill
        --disaggregation-transfer-backend kvxfer

With the package installed, SGLang knows that name by itself: it is a plugin (an entry point of
sglang.srt.plugins). docs/sglang.md has the options and what is supported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvxfer.sglang.plugin import BACKEND, install, register

if TYPE_CHECKING:
    from kvxfer.sglang.conn import (
        KvxferKVBootstrapServer,
        KvxferKVManager,
        KvxferKVReceiver,
        KvxferKVSender,
    )

__all__ = [
    "BACKEND",
    "KvxferKVBootstrapServer",
    "KvxferKVManager",
    "KvxferKVReceiver",
    "KvxferKVSender",
    "install",
    "register",
]


def __getattr__(name: str) -> Any:
    """SGLang itself is imported when a class is asked for, not with this package."""
    if name not in __all__:
        raise AttributeError(f"module 'kvxfer.sglang' has no attribute {name!r}")
    from kvxfer.sglang import conn

    return getattr(conn, name)

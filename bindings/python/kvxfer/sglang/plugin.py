"""Makes ``--disaggregation-transfer-backend kvxfer`` known to SGLang, by the hooks that SGLang has for
plugins: a transfer backend is a member of an enumeration, and a function maps it to classes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from enum import Enum
from typing import Any

BACKEND = "kvxfer"
TESTED = "0.5.23"

_UTILS = "sglang.srt.disaggregation.utils"
_CHOICES = "sglang.srt.arg_groups.choices"
_COMMON = "sglang.srt.disaggregation.common.conn"
_NEEDED = {
    "sglang.srt.plugins.hook_registry": ("HookRegistry", "HookType"),
    _CHOICES: ("DISAGG_TRANSFER_BACKEND_CHOICES", "add_disagg_transfer_backend_choices"),
    _UTILS: ("TransferBackend", "KVClassType", "get_kv_class"),
    _COMMON: (
        "CommonKVManager.update_status",
        "CommonKVManager.register_to_bootstrap",
        "CommonKVManager.is_abort_release_safe",
        "CommonKVManager.try_ensure_parallel_info",
        "CommonKVSender.send",
        "CommonKVReceiver.ensure_abort_notified",
        "CommonKVReceiver._check_waiting_timeout",
        "CommonKVReceiver._get_bootstrap_info_from_server",
        "CommonKVBootstrapServer",
        "KVTransferError",
    ),
}
"""What is used of SGLang, by module."""

_registered = False


def register() -> None:
    """For SGLang's plugin loader, which calls it in each of its processes and applies the hooks.
    RuntimeError names what this SGLang lacks; nothing is changed then."""
    global _registered
    _check()
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    utils = importlib.import_module(_UTILS)
    choices = importlib.import_module(_CHOICES)
    if BACKEND not in choices.DISAGG_TRANSFER_BACKEND_CHOICES:
        choices.add_disagg_transfer_backend_choices([BACKEND])
    if _registered:
        return
    hooks.HookRegistry.register(
        f"{_UTILS}.TransferBackend", _with_ours(utils.TransferBackend), hooks.HookType.REPLACE
    )
    hooks.HookRegistry.register(f"{_UTILS}.get_kv_class", _class_of, hooks.HookType.AROUND)
    _registered = True


def install() -> None:
    """As ``register``, for a program that imports SGLang by itself and loads no plugins."""
    register()
    importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry.apply_hooks()


def _with_ours(members: Any) -> Any:
    """The enumeration with one member more. A new one, for one that has members takes no others."""
    values = {each.name: each.value for each in members} | {"KVXFER": BACKEND}
    return Enum(members.__name__, values, module=members.__module__, qualname=members.__qualname__)


def _class_of(original: Callable[..., Any], transfer_backend: Any, class_type: Any) -> Any:
    if transfer_backend.value != BACKEND or class_type.name == "KVARGS":
        return original(transfer_backend, class_type)
    from kvxfer.sglang import conn

    return {
        "MANAGER": conn.KvxferKVManager,
        "SENDER": conn.KvxferKVSender,
        "RECEIVER": conn.KvxferKVReceiver,
        "BOOTSTRAP_SERVER": conn.KvxferKVBootstrapServer,
    }.get(class_type.name)


def _check() -> None:
    lacking = [
        f"{module}.{name}"
        for module, names in _NEEDED.items()
        for name in names
        if not _has(module, name)
    ]
    if lacking:
        raise RuntimeError(
            f"kvxfer.sglang: this SGLang ({_version()}) has no {', '.join(lacking)}; it was tested "
            f"with {TESTED}: install that version, or use --disaggregation-transfer-backend nixl "
            "with kvxfer's drop-in (docs/nixl.md)"
        )


def _has(module: str, name: str) -> bool:
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return False
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            return False
    return True


def _version() -> str:
    try:
        return str(importlib.import_module("sglang.version").__version__)
    except (ImportError, AttributeError):
        return "unknown version"

"""KvxferConnector: vLLM's prefill and decode apart, the KV cache moved by kvxfer.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KvxferConnector",
        "kv_connector_module_path": "kvxfer.vllm", "kv_role": "kv_producer"}'

With the package installed vLLM knows the name by itself (an entry point of vllm.general_plugins), and
``kv_connector_module_path`` may be left out. docs/vllm.md has the options and what is supported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvxfer.vllm.connector import KvxferConnector

__all__ = ["KvxferConnector", "register"]

_NAME = "KvxferConnector"


def register() -> None:
    """For vLLM's plugin loader, which calls it in each of its processes, perhaps several times."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    try:
        KVConnectorFactory.register_connector(_NAME, "kvxfer.vllm.connector", _NAME)
    except ValueError:
        pass  # it is known already


def __getattr__(name: str) -> Any:
    """vLLM itself is imported when the connector is asked for, not with this package."""
    if name != _NAME:
        raise AttributeError(f"module 'kvxfer.vllm' has no attribute {name!r}")
    from kvxfer.vllm.connector import KvxferConnector

    return KvxferConnector

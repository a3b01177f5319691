from kvxfer.compat.nixl import bindings as nixlBind
from kvxfer.compat.nixl.api import (
    DEFAULT_COMM_PORT,
    nixl_agent,
    nixl_agent_config,
    nixl_backend_handle,
    nixl_thread_sync_t,
)
from kvxfer.compat.nixl.handles import nixl_prepped_dlist_handle, nixl_xfer_handle

__all__ = [
    "DEFAULT_COMM_PORT",
    "nixlBind",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_backend_handle",
    "nixl_prepped_dlist_handle",
    "nixl_thread_sync_t",
    "nixl_xfer_handle",
]

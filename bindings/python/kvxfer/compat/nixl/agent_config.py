"""nixl_agent_config: what the caller of nixl_agent asks for."""

import enum

from . import bindings
from .bindings import DEFAULT_COMM_PORT, nixlAgentConfig

# What the number of threads is called in each backend's parameters.
_THREADS = {"UCX": "num_threads", "LIBFABRIC": "num_threads", "UCCL": "num_cpus"}


class nixl_thread_sync_t(enum.Enum):
    """How calls of several threads are kept apart. Here they always are."""

    NIXL_THREAD_SYNC_NONE = bindings.nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE
    NIXL_THREAD_SYNC_STRICT = bindings.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    NIXL_THREAD_SYNC_RW = bindings.nixl_thread_sync_t.NIXL_THREAD_SYNC_RW
    NIXL_THREAD_SYNC_DEFAULT = bindings.nixl_thread_sync_t.NIXL_THREAD_SYNC_DEFAULT


class nixl_agent_config:
    """``backends``: names that are created with the agent; all of them mean kvxfer. Threads and
    their synchronisation are kvxfer's own, whatever is asked for here."""

    def __init__(
        self,
        enable_prog_thread: bool = True,
        enable_listen_thread: bool = False,
        listen_port: int = DEFAULT_COMM_PORT,
        capture_telemetry: bool = False,
        num_threads: int = 0,
        backends: list[str] = ["UCX"],
        sync_mode: nixl_thread_sync_t | None = None,
    ) -> None:
        if sync_mode is not None and not isinstance(sync_mode, nixl_thread_sync_t):
            raise TypeError(
                f"sync_mode is a {type(sync_mode).__name__}; "
                "expected a nixl_thread_sync_t of nixl._api"
            )
        self.backends = backends
        self.enable_pthread = enable_prog_thread
        self.enable_listen = enable_listen_thread
        self.port = listen_port
        self.capture_telemetry = capture_telemetry
        self.num_threads = num_threads
        self.sync_mode = sync_mode

    def _for_bindings(self) -> nixlAgentConfig:
        made = nixlAgentConfig()
        made.useProgThread = self.enable_pthread
        made.useListenThread = self.enable_listen
        made.listenPort = self.port
        made.captureTelemetry = self.capture_telemetry
        if self.sync_mode is not None:
            made.syncMode = self.sync_mode.value
        return made

    def _params(self, backend: str) -> dict[str, str]:
        if self.num_threads > 0 and backend in _THREADS:
            return {_THREADS[backend]: str(self.num_threads)}
        return {}

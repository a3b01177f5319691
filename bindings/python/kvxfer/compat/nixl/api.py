"""nixl_agent: NIXL's Python interface. Each call is nixlAgent's, with names for handles."""

import io
import logging
import pickle
from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from .agent_config import nixl_agent_config, nixl_thread_sync_t
from .bindings import (
    DEFAULT_COMM_PORT,
    nixlAgent,
    nixlRegDList,
    nixlRemoteDList,
    nixlXferDList,
    nixlXferTelemetry,
)
from .enums import NIXL_INIT_AGENT, nixl_status_t, nixl_xfer_op_t
from .handles import nixl_prepped_dlist_handle, nixl_xfer_handle
from .inputs import MEMORY, to_descs

logger = logging.getLogger("kvxfer.compat.nixl")

nixl_backend_handle = int

__all__ = [
    "DEFAULT_COMM_PORT",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_backend_handle",
    "nixl_prepped_dlist_handle",
    "nixl_thread_sync_t",
    "nixl_xfer_handle",
]


def _state(status: nixl_status_t) -> str:
    return "DONE" if status == nixl_status_t.NIXL_SUCCESS else "PROC"


class _Unpickler(pickle.Unpickler):
    """For bytes from the network, which must not name what is called here."""

    _LISTS = {(kind.__module__, kind.__name__): kind for kind in (nixlXferDList, nixlRegDList)}

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._LISTS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"{module}.{name} is not a kind of descriptor list"
            ) from None


class nixl_agent:
    """One agent, which registers memory, knows remote agents, and moves data to and from theirs.

    Any thread may call. Errors are the exceptions of ``nixl._bindings``; the states of a transfer
    are "DONE" and "PROC", and one that failed raises. ``backends`` of any call are names that were
    created here (KeyError: was not); they choose nothing, for all of them mean kvxfer."""

    def __init__(
        self,
        agent_name: str,
        nixl_conf: nixl_agent_config | None = None,
        instantiate_all: bool = False,
    ) -> None:
        """ValueError: no name; RuntimeError: the port to listen at is taken; nixlBackendError."""
        config = nixl_conf or nixl_agent_config()
        self.agent = nixlAgent(agent_name, config._for_bindings())
        self.name = agent_name
        self.notifs: dict[str, list[bytes]] = {}
        self.backends: dict[str, nixl_backend_handle] = {}
        self.backend_mems: dict[str, list[str]] = {}
        self.backend_options: dict[str, dict[str, str]] = {}
        self.plugin_list = self.agent.getAvailPlugins()
        self.plugin_b_options: dict[str, dict[str, str]] = {}
        self.plugin_mem_types: dict[str, list[str]] = {}
        self.nixl_mems = dict(MEMORY)
        self.nixl_ops = {"WRITE": nixl_xfer_op_t.NIXL_WRITE, "READ": nixl_xfer_op_t.NIXL_READ}
        if nixl_conf and instantiate_all:
            logger.warning("instantiate_all is ignored, for the configuration names backends")
        every = instantiate_all and not nixl_conf
        for name in self.plugin_list if every else config.backends:
            if name in self.plugin_list:
                self.create_backend(name, config._params(name))
            else:
                logger.warning("backend %s is left out: kvxfer does not stand for it", name)

    def _handles(self, backends: Iterable[str]) -> list[int]:
        return [self.backends[name] for name in backends]

    # --- Backends -----------------------------------------------------------------------------
    def get_plugin_list(self) -> list[str]:
        return self.plugin_list

    def _load_plugin(self, backend: str) -> bool:
        if backend not in self.plugin_list:
            logger.warning("there is no plugin %s", backend)
            return False
        if backend not in self.plugin_mem_types:
            params, mems = self.agent.getPluginParams(backend)
            self.plugin_b_options[backend], self.plugin_mem_types[backend] = params, mems
        return True

    def get_plugin_mem_types(self, backend: str) -> list[str]:
        """Empty: no such plugin."""
        return self.plugin_mem_types[backend] if self._load_plugin(backend) else []

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        """What create_backend takes, with defaults. Empty: no such plugin, or it takes nothing."""
        return self.plugin_b_options[backend] if self._load_plugin(backend) else {}

    def _created(self, backend: str) -> bool:
        if backend not in self.backends:
            logger.warning("backend %s was not created", backend)
        return backend in self.backends

    def get_backend_mem_types(self, backend: str) -> list[str]:
        """Empty: it was not created."""
        return self.backend_mems[backend] if self._created(backend) else []

    def get_backend_params(self, backend: str) -> dict[str, str]:
        """What it was created with."""
        return self.backend_options[backend] if self._created(backend) else {}

    def create_backend(self, backend: str, initParams: dict[str, str] = {}) -> None:
        """nixlNotFoundError: not one of kvxfer's names; nixlInvalidParamError: created before."""
        handle = self.agent.createBackend(backend, initParams)
        self.backends[backend] = handle
        options, mems = self.agent.getBackendParams(handle)
        self.backend_options[backend], self.backend_mems[backend] = options, mems

    # --- Memory -------------------------------------------------------------------------------
    def register_memory(
        self, reg_list: Any, mem_type: str | None = None, backends: list[str] = []
    ) -> nixlRegDList:
        """The list that deregister_memory takes."""
        # None, where there was nothing to make descriptors of, is a TypeError here, as in NIXL.
        descs = cast(nixlRegDList, self.get_reg_descs(reg_list, mem_type))
        self.agent.registerMem(descs, self._handles(backends))
        return descs

    def deregister_memory(self, dereg_list: nixlRegDList, backends: list[str] = []) -> None:
        """Waits, up to 5 s, until no transfer can touch it. nixlNotFoundError: not registered."""
        self.agent.deregisterMem(dereg_list, self._handles(backends))

    def query_memory(
        self, reg_list: Any, backend: str, mem_type: str | None = None
    ) -> list[dict[str, str] | None]:
        """nixlNotSupportedError, for kvxfer reaches no storage. ValueError: no such backend."""
        descs = cast(nixlRegDList, self.get_reg_descs(reg_list, mem_type))
        if backend not in self.backends:
            raise ValueError(f"no backend {backend!r} was created; there is {list(self.backends)}")
        return self.agent.queryMem(descs, self.backends[backend])

    def prep_mem_view(
        self, dlist: nixlXferDList | nixlRemoteDList, *, backends: list[str] | None = None
    ) -> int:
        """nixlBackendError: kvxfer has none."""
        return self.agent.prepMemView(dlist, self._handles(backends or []))

    def release_mem_view(self, mvh: int) -> None:
        self.agent.releaseMemView(mvh)

    # --- Descriptors --------------------------------------------------------------------------
    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> nixlXferDList | None:
        """Of tuples (address, bytes, device) or an array (N, 3) with a mem_type; of a tensor, or a
        list of them; a list as it is. None, and a line of the log: of nothing else."""
        return to_descs(nixlXferDList, descs, mem_type)

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> nixlRegDList | None:
        """As get_xfer_descs, but tuples have meta information as fourth element."""
        return to_descs(nixlRegDList, descs, mem_type)

    def get_remote_descs(self, descs: Any, mem_type: str | None = None) -> nixlRemoteDList | None:
        """Of tuples (address, bytes, device, agent)."""
        return to_descs(nixlRemoteDList, descs, mem_type)

    def get_serialized_descs(self, descs: Any) -> bytes:
        return pickle.dumps(descs)

    def deserialize_descs(self, serialized_descs: bytes) -> Any:
        """pickle.UnpicklingError: anything but descriptor lists, and what is made of numbers, text
        and containers alone."""
        return _Unpickler(io.BytesIO(serialized_descs)).load()

    # --- Transfers ----------------------------------------------------------------------------
    def make_connection(self, remote_agent: str, backends: list[str] = []) -> None:
        """Begins to connect; transfers connect by themselves too."""
        self.agent.makeConnection(remote_agent, self._handles(backends))

    def prep_xfer_dlist(
        self,
        agent_name: str,
        xfer_list: Any,
        mem_type: str | None = None,
        backends: list[str] = [],
    ) -> nixl_prepped_dlist_handle:
        """``agent_name``: "" or "NIXL_INIT_AGENT" for the local side of transfers; for the remote
        side an agent's name, or one's own. ``xfer_list``: as get_xfer_descs, or an array (N, 5) of
        address, bytes, device, stride, count. nixlNotFoundError: memory that is not registered."""
        if agent_name == "NIXL_INIT_AGENT":
            agent_name = NIXL_INIT_AGENT
        handles = self._handles(backends)
        if isinstance(xfer_list, np.ndarray) and xfer_list.ndim == 2 and xfer_list.shape[1] == 5:
            if mem_type is None:
                raise ValueError("mem_type is needed with an array of N rows of 5")
            given: tuple[Any, ...] = (self.nixl_mems[mem_type], xfer_list)
        else:
            given = (self.get_xfer_descs(xfer_list, mem_type),)
        return nixl_prepped_dlist_handle(
            self.agent, self.agent.prepXferDlist(agent_name, *given, handles)
        )

    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: nixl_prepped_dlist_handle,
        local_indices: list[int] | np.ndarray,
        remote_xfer_side: nixl_prepped_dlist_handle,
        remote_indices: list[int] | np.ndarray,
        notif_msg: bytes = b"",
        backends: list[str] = [],
        skip_desc_merge: bool = False,
    ) -> nixl_xfer_handle:
        """``operation``: "WRITE" or "READ" (else KeyError). nixlInvalidParamError: indices out of
        range or not as many, blocks of unequal bytes."""
        handle = self.agent.makeXferReq(
            self.nixl_ops[operation],
            local_xfer_side._handle,
            local_indices,
            remote_xfer_side._handle,
            remote_indices,
            notif_msg,
            self._handles(backends),
            skip_desc_merge,
        )
        return nixl_xfer_handle(self.agent, handle)

    def initialize_xfer(
        self,
        operation: str,
        local_descs: nixlXferDList,
        remote_descs: nixlXferDList,
        remote_agent: str,
        notif_msg: bytes = b"",
        backends: list[str] = [],
    ) -> nixl_xfer_handle:
        """make_prepped_xfer of two whole lists."""
        handle = self.agent.createXferReq(
            self.nixl_ops[operation],
            local_descs,
            remote_descs,
            remote_agent,
            notif_msg,
            self._handles(backends),
        )
        return nixl_xfer_handle(self.agent, handle)

    def transfer(self, handle: nixl_xfer_handle, notif_msg: bytes = b"") -> str:
        """Posts it, once more if it was before. ``notif_msg``: in place of the one that it has.

        nixlRepostActiveError: it is under way. Else "DONE", "PROC", or what check_xfer_state
        raises."""
        return _state(self.agent.postXferReq(handle._handle, notif_msg))

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """nixlNotPostedError; nixlRemoteDisconnectError: the remote agent is gone;
        nixlNotFoundError: it was removed; nixlBackendError: the deadline passed."""
        return _state(self.agent.getXferStatus(handle._handle))

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> nixlXferTelemetry:
        """nixlNoTelemetryError: the agent was made without capture_telemetry."""
        return self.agent.getXferTelemetry(handle._handle)

    def estimate_xfer_cost(self, req_handle: nixl_xfer_handle) -> tuple[int, int, str]:
        """Microseconds, how far they may be off, and "UNKNOWN", which is what NIXL says."""
        duration, margin, _ = self.agent.estimateXferCost(req_handle._handle)
        return duration, margin, "UNKNOWN"

    def query_xfer_backend(self, handle: nixl_xfer_handle) -> str:
        chosen = self.agent.queryXferBackend(handle._handle)
        return next(name for name, known in self.backends.items() if known == chosen)

    def release_xfer_handle(self, handle: nixl_xfer_handle) -> None:
        """Cancels it where it is under way; nixlRepostActiveError: bytes of it may still move."""
        handle.release()

    def release_dlist_handle(self, handle: nixl_prepped_dlist_handle) -> None:
        handle.release()

    # --- Notifications ------------------------------------------------------------------------
    def get_new_notifs(self, backends: list[str] = []) -> dict[str, list[bytes]]:
        """What has come since the last call, by sender."""
        return self.agent.getNotifs({}, self._handles(backends))

    def update_notifs(self, backends: list[str] = []) -> dict[str, list[bytes]]:
        """Adds what has come to ``notifs``, which it returns."""
        self.notifs = self.agent.getNotifs(self.notifs, self._handles(backends))
        return self.notifs

    def check_remote_xfer_done(
        self,
        remote_agent_name: str,
        lookup_tag: bytes,
        backends: list[str] = [],
        tag_is_prefix: bool = True,
    ) -> bool:
        """Whether a message that begins with the tag, or has it anywhere, has come; takes the first
        such out of ``notifs``."""
        messages = self.update_notifs(backends).get(remote_agent_name, [])
        for at, message in enumerate(messages):
            if message.startswith(lookup_tag) if tag_is_prefix else lookup_tag in message:
                if message:  # NIXL leaves an empty one where it is
                    del messages[at]
                return True
        return False

    def send_notif(
        self, remote_agent_name: str, notif_msg: bytes, backend: str | None = None
    ) -> None:
        """A notification by itself. nixlNotFoundError: unknown agent; nixlRemoteDisconnectError: it
        is known to be gone."""
        handles = [] if backend is None else [self.backends[backend]]
        self.agent.genNotif(remote_agent_name, notif_msg, handles)

    # --- Metadata -----------------------------------------------------------------------------
    def get_agent_metadata(self) -> bytes:
        """Take it again after registering memory."""
        return self.agent.getLocalMD()

    def get_partial_agent_metadata(
        self, descs: nixlRegDList, inc_conn_info: bool = False, backends: list[str] = []
    ) -> bytes:
        """Of registered memory, each range as it was registered; an empty list is for
        connecting alone. nixlNotFoundError: one was not registered so."""
        return self.agent.getLocalPartialMD(descs, inc_conn_info, self._handles(backends))

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """The agent's name, in bytes. nixlMismatchError: not metadata of the drop-in;
        nixlInvalidParamError: one's own; nixlNotAllowedError: it restarted, and has to be removed
        first; nixlBackendError: it cannot be reached from here."""
        return self.agent.loadRemoteMD(metadata)

    def remove_remote_agent(self, agent: str) -> None:
        """Transfers to it that are under way end. Nothing, where it is not known."""
        self.agent.invalidateRemoteMD(agent)

    def check_remote_metadata(self, agent: str, descs: nixlXferDList | None = None) -> bool:
        """Whether the agent is known, and all of ``descs`` to be within memory of it."""
        if descs is None:
            descs = nixlXferDList(MEMORY["DRAM"])
        return self.agent.checkRemoteMD(agent, descs) == nixl_status_t.NIXL_SUCCESS

    def send_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """To the listener there; returns at once, and logs what fails. nixlInvalidParamError:
        without an address, for there is no central metadata server."""
        self.agent.sendLocalMD(ip_addr, port)

    def send_partial_agent_metadata(
        self,
        descs: nixlRegDList,
        inc_conn_info: bool = False,
        backends: list[str] = [],
        ip_addr: str = "",
        port: int = DEFAULT_COMM_PORT,
        label: str = "",
    ) -> None:
        handles = self._handles(backends)
        self.agent.sendLocalPartialMD(descs, inc_conn_info, handles, ip_addr, port, label)

    def fetch_remote_metadata(
        self, remote_agent: str, ip_addr: str = "", port: int = DEFAULT_COMM_PORT, label: str = ""
    ) -> None:
        """Of whoever listens there; check_remote_metadata tells when it has come."""
        self.agent.fetchRemoteMD(remote_agent, ip_addr, port, label)

    def invalidate_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Makes the agent that listens there forget this one."""
        self.agent.invalidateLocalMD(ip_addr, port)

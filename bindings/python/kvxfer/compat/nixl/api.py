"""nixl_agent: NIXL's Python interface. Each call is nixlAgent's, with names for handles.

All of it is one module, as in NIXL: programs patch names of it and of ``nixlBind``, so each is
looked up when it is needed, and nixlAgent is called as NIXL calls it, argument by argument.
"""

from __future__ import annotations

import io
import pickle
import sys  # noqa: F401 (NIXL's module has these names, and programs import them from there)
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Optional, Union  # noqa: F401

import numpy as np

from . import bindings as nixlBind
from .agent import FINALISING
from .dlist import nixlRegDList, nixlRemoteDList, nixlXferDList
from .inputs import NotDescriptorsError, to_descs
from .logs import get_logger, logger  # noqa: F401

DEFAULT_COMM_PORT = nixlBind.DEFAULT_COMM_PORT

# What the number of threads is called in each backend's parameters.
_THREADS = {
    "UCX": "num_threads",
    "OBJ": "num_threads",
    "LIBFABRIC": "num_threads",
    "GDS_MT": "thread_count",
    "UCCL": "num_cpus",
}

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


class _Handle:
    """Released once by hand, or when the last reference goes."""

    __slots__ = ("_handle", "_agent", "_released")
    _NAME = ""

    def __init__(self, agent: Any, value: int) -> None:
        """``agent``: a nixlAgent."""
        self._handle = int(value)
        self._agent = agent
        self._released = False

    def __repr__(self) -> str:
        return f"{self._NAME}(0x{self._handle:x}, released={self._released})"

    def release(self) -> None:
        """Nothing, the second time."""
        if not self._released:
            self._give_back()
            self._released = True

    def _give_back(self) -> None:
        raise NotImplementedError

    def __del__(self) -> None:
        # Of an object whose constructor failed, and at exit, anything may be missing.
        if getattr(self, "_released", True):
            return
        try:
            with FINALISING:
                self._give_back()
        except Exception as error:
            # Where kvxfer's agent is closed already there is nothing left to release.
            try:
                logger.debug("%r was not released: %s", self, error)
            except Exception:
                pass


class nixl_prepped_dlist_handle(_Handle):
    """A list from nixl_agent.prep_xfer_dlist."""

    __slots__ = ()
    _NAME = "nixl_prepped_dlist_handle"

    def _give_back(self) -> None:
        self._agent.releasedDlistH(self._handle)


class nixl_xfer_handle(_Handle):
    """A transfer. ``release`` of one under way cancels it, and raises nixlRepostActiveError where
    bytes of it may still move; call it again then."""

    __slots__ = ()
    _NAME = "nixl_xfer_handle"

    def _give_back(self) -> None:
        self._agent.releaseXferReq(self._handle)


nixl_backend_handle = int


class nixl_thread_sync_t(Enum):
    """How calls of several threads are kept apart. Here they always are."""

    NIXL_THREAD_SYNC_NONE = nixlBind.NIXL_THREAD_SYNC_NONE
    NIXL_THREAD_SYNC_STRICT = nixlBind.NIXL_THREAD_SYNC_STRICT
    NIXL_THREAD_SYNC_RW = nixlBind.NIXL_THREAD_SYNC_RW
    NIXL_THREAD_SYNC_DEFAULT = nixlBind.NIXL_THREAD_SYNC_DEFAULT


class nixl_agent_config:
    """``backends``: names that are created with the agent; all of them mean kvxfer. Threads and
    their synchronisation are kvxfer's own, whatever is asked for here. ``sync_mode`` None is told
    to nixlAgent as STRICT with a listener and NONE without, as by NIXL."""

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
        """TypeError: a sync_mode that is not of this module's enumeration."""
        self.backends = backends
        self.enable_pthread = enable_prog_thread
        self.enable_listen = enable_listen_thread
        self.port = listen_port
        self.capture_telemetry = capture_telemetry
        self.num_threads = num_threads
        if sync_mode is not None and not isinstance(sync_mode, nixl_thread_sync_t):
            raise TypeError(
                f"sync_mode must be a nixl_thread_sync_t (got {type(sync_mode).__name__!r}); "
                "it is the one of nixl._api"
            )
        self.sync_mode = sync_mode


def _bindings_config(asked: nixl_agent_config) -> Any:
    made = nixlBind.nixlAgentConfig()
    made.useProgThread = asked.enable_pthread
    made.useListenThread = asked.enable_listen
    made.listenPort = asked.port
    mode = asked.sync_mode
    if not mode:
        kind = nixl_thread_sync_t
        mode = (kind.NIXL_THREAD_SYNC_STRICT if asked.enable_listen else kind.NIXL_THREAD_SYNC_NONE)
    made.syncMode = mode.value
    made.pthrDelay = 0
    made.lthrDelay = 100_000
    made.captureTelemetry = asked.capture_telemetry
    return made


def _params(asked: nixl_agent_config, backend: str) -> dict[str, str]:
    if asked.num_threads > 0 and backend in _THREADS:
        return {_THREADS[backend]: str(asked.num_threads)}
    return {}


def _state(status: Any) -> str:
    if status == nixlBind.NIXL_SUCCESS:
        return "DONE"
    return "PROC" if status == nixlBind.NIXL_IN_PROG else "ERR"


def _handles(agent: nixl_agent, backends: Iterable[str]) -> list[int]:
    return [agent.backends[name] for name in backends]


def _descs(agent: nixl_agent, kind: Any, form: str, descs: Any, mem_type: Any) -> Any:
    """As in NIXL, what cannot be told apart becomes None, and a line of the log."""
    try:
        return to_descs(kind, form, descs, mem_type, agent.nixl_mems)
    except NotDescriptorsError as why:
        logger.error("no descriptors: %s", why)
        return None


def _known(table: dict[str, Any], backend: str, plugins_of: nixl_agent | None = None) -> Any:
    """What the table says of a backend; of a plugin, after it was asked once. None: nothing."""
    if backend not in table and plugins_of is not None and backend in plugins_of.plugin_list:
        try:
            params, mems = plugins_of.agent.getPluginParams(backend)
            plugins_of.plugin_b_options[backend] = params
            plugins_of.plugin_mem_types[backend] = mems
        except Exception as error:
            logger.warning("plugin %s was not asked: %s", backend, error)
    if backend not in table:
        logger.warning("nothing is known of %s", backend)
    return table.get(backend)


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
        if nixl_conf and instantiate_all:
            instantiate_all = False
            logger.warning("instantiate_all is ignored, for the configuration names backends")
        if not nixl_conf:
            nixl_conf = nixl_agent_config()
        self.agent = nixlBind.nixlAgent(agent_name, _bindings_config(nixl_conf))
        self.name = agent_name
        self.notifs: dict[str, list[bytes]] = {}
        self.backends: dict[str, nixl_backend_handle] = {}
        self.backend_mems: dict[str, list[str]] = {}
        self.backend_options: dict[str, dict[str, str]] = {}
        self.plugin_list: list[str] = self.agent.getAvailPlugins()
        if not self.plugin_list:
            raise RuntimeError("there is no plugin, and nothing to move data with")
        self.plugin_b_options: dict[str, dict[str, str]] = {}
        self.plugin_mem_types: dict[str, list[str]] = {}
        if instantiate_all:
            nixl_conf.backends = self.plugin_list
        for name in nixl_conf.backends:
            if name in self.plugin_list:
                self.create_backend(name, _params(nixl_conf, name))
            else:
                logger.warning("backend %s is left out: kvxfer does not stand for it", name)
        self.nixl_mems = {
            "DRAM": nixlBind.DRAM_SEG,
            "VRAM": nixlBind.VRAM_SEG,
            "FILE": nixlBind.FILE_SEG,
            "BLOCK": nixlBind.BLK_SEG,
            "OBJ": nixlBind.OBJ_SEG,
            # as they were called once
            "cpu": nixlBind.DRAM_SEG,
            "cuda": nixlBind.VRAM_SEG,
        }
        self.nixl_ops = {"WRITE": nixlBind.NIXL_WRITE, "READ": nixlBind.NIXL_READ}

    # --- Backends -----------------------------------------------------------------------------
    def get_plugin_list(self) -> list[str]:
        return self.plugin_list

    def get_plugin_mem_types(self, backend: str) -> list[str]:
        """Empty: no such plugin, or it cannot be asked."""
        return _known(self.plugin_mem_types, backend, self) or []

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        """What create_backend takes, with defaults. Empty: no such plugin, or it takes nothing."""
        return _known(self.plugin_b_options, backend, self) or {}

    def get_backend_mem_types(self, backend: str) -> list[str]:
        """Empty: it was not created."""
        return _known(self.backend_mems, backend) or []

    def get_backend_params(self, backend: str) -> dict[str, str]:
        """What it was created with."""
        return _known(self.backend_options, backend) or {}

    def create_backend(self, backend: str, initParams: dict[str, str] = {}) -> None:
        """nixlNotFoundError: not one of kvxfer's names; nixlInvalidParamError: created before."""
        self.backends[backend] = self.agent.createBackend(backend, initParams)
        options, mems = self.agent.getBackendParams(self.backends[backend])
        self.backend_options[backend], self.backend_mems[backend] = options, mems

    # --- Memory -------------------------------------------------------------------------------
    def register_memory(
        self, reg_list: Any, mem_type: str | None = None, backends: list[str] = []
    ) -> nixlRegDList:
        """The list that deregister_memory takes."""
        # None, where there was nothing to make descriptors of, is a TypeError here, as in NIXL.
        descs: Any = self.get_reg_descs(reg_list, mem_type)
        self.agent.registerMem(descs, _handles(self, backends))
        return descs

    def deregister_memory(self, dereg_list: nixlRegDList, backends: list[str] = []) -> None:
        """Waits, up to 5 s, until no transfer can touch it. nixlNotFoundError: not registered."""
        self.agent.deregisterMem(dereg_list, _handles(self, backends))

    def query_memory(
        self, reg_list: Any, backend: str, mem_type: str | None = None
    ) -> list[dict[str, str] | None]:
        """nixlNotSupportedError, for kvxfer reaches no storage. ValueError: no such backend."""
        descs = self.get_reg_descs(reg_list, mem_type)
        if backend not in self.backends:
            raise ValueError(f"no backend {backend!r} was created; there is {list(self.backends)}")
        return self.agent.queryMem(descs, self.backends[backend])

    def prep_mem_view(
        self, dlist: nixlXferDList | nixlRemoteDList, *, backends: list[str] | None = None
    ) -> int:
        """nixlBackendError: kvxfer has none."""
        return self.agent.prepMemView(dlist, _handles(self, backends or []))

    def release_mem_view(self, mvh: int) -> None:
        self.agent.releaseMemView(mvh)

    # --- Descriptors --------------------------------------------------------------------------
    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> nixlXferDList | None:
        """Of tuples (address, bytes, device) or an array (N, 3) with a mem_type; of a tensor, or a
        list of them; a list as it is. None, and a line of the log: of nothing else."""
        return _descs(self, nixlBind.nixlXferDList, "xfer", descs, mem_type)

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> nixlRegDList | None:
        """As get_xfer_descs, but tuples have meta information as fourth element."""
        return _descs(self, nixlBind.nixlRegDList, "reg", descs, mem_type)

    def get_remote_descs(self, descs: Any, mem_type: str | None = None) -> nixlRemoteDList | None:
        """Of tuples (address, bytes, device, agent)."""
        return _descs(self, nixlBind.nixlRemoteDList, "remote", descs, mem_type)

    def get_serialized_descs(self, descs: Any) -> bytes:
        return pickle.dumps(descs)

    def deserialize_descs(self, serialized_descs: bytes) -> Any:
        """pickle.UnpicklingError: anything but descriptor lists, and what is made of numbers, text
        and containers alone."""
        return _Unpickler(io.BytesIO(serialized_descs)).load()

    # --- Transfers ----------------------------------------------------------------------------
    def make_connection(self, remote_agent: str, backends: list[str] = []) -> None:
        """Begins to connect; transfers connect by themselves too."""
        self.agent.makeConnection(remote_agent, _handles(self, backends))

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
        if agent_name in ("NIXL_INIT_AGENT", ""):
            agent_name = nixlBind.NIXL_INIT_AGENT
        handles = _handles(self, backends)
        given: tuple[Any, ...]
        if isinstance(xfer_list, np.ndarray) and xfer_list.ndim == 2 and xfer_list.shape[1] == 5:
            if mem_type is None:
                raise ValueError("mem_type is needed with an array of N rows of 5")
            given = self.nixl_mems[mem_type], xfer_list
        else:
            given = (self.get_xfer_descs(xfer_list, mem_type),)
        handle = self.agent.prepXferDlist(agent_name, *given, handles)
        return nixl_prepped_dlist_handle(self.agent, handle)

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
            _handles(self, backends),
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
            _handles(self, backends),
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

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> nixlBind.nixlXferTelemetry:
        """nixlNoTelemetryError: the agent was made without capture_telemetry."""
        return self.agent.getXferTelemetry(handle._handle)

    def estimate_xfer_cost(self, req_handle: nixl_xfer_handle) -> tuple[int, int, str]:
        """Microseconds, how far they may be off, and "UNKNOWN", which is what NIXL says."""
        duration, margin, method = self.agent.estimateXferCost(req_handle._handle)
        by_backend = method == nixlBind.NIXL_COST_ANALYTICAL_BACKEND
        return duration, margin, "ANALYTICAL_BACKEND" if by_backend else "UNKNOWN"

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
        return self.agent.getNotifs({}, _handles(self, backends))

    def update_notifs(self, backends: list[str] = []) -> dict[str, list[bytes]]:
        """Adds what has come to ``notifs``, which it returns."""
        self.notifs = self.agent.getNotifs(self.notifs, _handles(self, backends))
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
        self.notifs = self.agent.getNotifs(self.notifs, _handles(self, backends))
        messages = self.notifs.get(remote_agent_name, [])
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
        if backend is None:
            self.agent.genNotif(remote_agent_name, notif_msg)
        else:
            self.agent.genNotif(remote_agent_name, notif_msg, [self.backends[backend]])

    # --- Metadata -----------------------------------------------------------------------------
    def get_agent_metadata(self) -> bytes:
        """Take it again after registering memory."""
        return self.agent.getLocalMD()

    def get_partial_agent_metadata(
        self, descs: nixlRegDList, inc_conn_info: bool = False, backends: list[str] = []
    ) -> bytes:
        """Of registered memory, each range as it was registered; an empty list is for
        connecting alone. nixlNotFoundError: one was not registered so."""
        return self.agent.getLocalPartialMD(descs, inc_conn_info, _handles(self, backends))

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
            descs = nixlBind.nixlXferDList(nixlBind.DRAM_SEG)
        return bool(self.agent.checkRemoteMD(agent, descs) == nixlBind.NIXL_SUCCESS)

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
        handles = _handles(self, backends)
        self.agent.sendLocalPartialMD(descs, inc_conn_info, handles, ip_addr, port, label)

    def fetch_remote_metadata(
        self, remote_agent: str, ip_addr: str = "", port: int = DEFAULT_COMM_PORT, label: str = ""
    ) -> None:
        """Of whoever listens there; check_remote_metadata tells when it has come."""
        self.agent.fetchRemoteMD(remote_agent, ip_addr, port, label)

    def invalidate_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Makes the agent that listens there forget this one."""
        self.agent.invalidateLocalMD(ip_addr, port)

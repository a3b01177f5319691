"""nixlAgent: NIXL's calls by their C++ names, with handles that are numbers.

Here arguments are checked and handles looked up; what is done is in engine.py.
"""

import os
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from . import environment
from .arguments import to_bytes, to_int, to_port, to_text
from .config import nixlAgentConfig
from .dlist import nixlRegDList, nixlRemoteDList, nixlXferDList, rows_of_array
from .engine import MEMORY_KINDS, NETWORK_BACKENDS, Engine
from .enums import NIXL_INIT_AGENT, nixl_mem_t, nixl_status_t, nixl_xfer_op_t
from .errors import (
    nixl_error,
    nixlBackendError,
    nixlInvalidParamError,
    nixlNoTelemetryError,
    nixlNotFoundError,
    nixlNotSupportedError,
)
from .exchange import FETCH, LOAD, REMOVE, Courier, Listener
from .handle_table import HandleTable
from .native import Native
from .prepared import PreparedList, pairs_of_prepared
from .transfers import Transfer, nixlXferTelemetry

_MEMORY_NAMES = [mem.name for mem in MEMORY_KINDS]
_UCX_DEFAULTS = {"num_workers": "1", "ucx_devices": "", "ucx_error_handling_mode": "peer"}
_SUCCESS, _IN_PROG = nixl_status_t.NIXL_SUCCESS, nixl_status_t.NIXL_IN_PROG


class _Finalising(threading.local):
    """Whether this thread is in a finaliser, within whatever call the garbage collector runs."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


FINALISING = _Finalising()


def _need(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{what} is a {type(value).__name__}; expected a {kind.__name__}")
    return value


def _close(owner: int, engine: Engine, courier: Courier, listeners: list[Listener]) -> None:
    for listener in listeners:
        listener.stop()
    # In a forked child the rest is its parent's, and locks may be held by threads of the parent.
    if os.getpid() != owner:
        return
    courier.stop()
    engine.close()


class nixlAgent(Native):
    """One agent. Any thread may call. Closed when the last reference to it goes, or at exit.

    No call makes another one of these: a program may override or patch each by itself."""

    __slots__ = ("_kvx_engine", "_kvx_handles", "_kvx_params", "_kvx_telemetry", "_kvx_courier")

    def __init__(self, name: str, config: nixlAgentConfig, /) -> None:
        name = to_text(name, "the agent's name")
        _need(config, nixlAgentConfig, "the configuration")
        if not name:
            raise ValueError("an agent has a name")
        self._kvx_engine = Engine(name)
        self._kvx_handles = HandleTable()
        self._kvx_params: dict[int, dict[str, str]] = {}
        self._kvx_telemetry = environment.telemetry(config._kvx_values["captureTelemetry"])
        self._kvx_courier = Courier(self._kvx_engine)
        asked = config._kvx_values
        listeners = []
        if asked["useListenThread"]:
            listeners.append(Listener(self._kvx_engine, asked["listenPort"]))
        # Not __del__: at exit its order is chance, and what it needs may be gone.
        weakref.finalize(self, _close, os.getpid(), self._kvx_engine, self._kvx_courier, listeners)
        Native.__init__(self)

    def _kvx_backends(self, handles: Iterable[int]) -> list[int]:
        known = set(self._kvx_engine.backends.values())
        given = [to_int(handle, "a backend") for handle in handles]
        if set(given) - known:
            raise nixl_error(nixlInvalidParamError, "a backend was not created by this agent")
        return given

    # --- Backends -----------------------------------------------------------------------------
    def getAvailPlugins(self) -> list[str]:
        return list(NETWORK_BACKENDS)

    def getPluginParams(self, arg0: str, /) -> tuple[dict[str, str], list[str]]:
        name = to_text(arg0, "the plugin")
        if name not in NETWORK_BACKENDS:
            raise nixl_error(nixlNotFoundError, f"no plugin {name}")
        return dict(_UCX_DEFAULTS) if name == "UCX" else {}, list(_MEMORY_NAMES)

    def createBackend(self, arg0: str, arg1: Mapping[str, str], /) -> int:
        _need(arg1, Mapping, "the parameters")
        params = {to_text(k, "a parameter"): to_text(v, "its value") for k, v in arg1.items()}
        handle = self._kvx_engine.create_backend(to_text(arg0, "the backend"), params)
        self._kvx_params[handle] = params
        return handle

    def getBackendParams(self, arg0: int, /) -> tuple[dict[str, str], list[str]]:
        (handle,) = self._kvx_backends([arg0])
        return dict(self._kvx_params[handle]), list(_MEMORY_NAMES)

    # --- Memory -------------------------------------------------------------------------------
    def registerMem(self, descs: nixlRegDList, backends: Iterable[int] = ()) -> nixl_status_t:
        _need(descs, nixlRegDList, "descs")
        self._kvx_engine.register(descs, bool(self._kvx_backends(backends)))
        return _SUCCESS

    def deregisterMem(self, descs: nixlRegDList, backends: Iterable[int] = ()) -> nixl_status_t:
        _need(descs, nixlRegDList, "descs")
        self._kvx_backends(backends)
        self._kvx_engine.deregister(descs)
        return _SUCCESS

    def queryMem(self, descs: nixlRegDList, backend: int) -> list[dict[str, str] | None]:
        """What is in storage, of which kvxfer knows nothing: nixlNotSupportedError."""
        _need(descs, nixlRegDList, "descs")
        self._kvx_backends([backend])
        raise nixl_error(nixlNotSupportedError, "kvxfer reaches no storage that could be queried")

    def prepMemView(
        self, dlist: nixlXferDList | nixlRemoteDList, backends: Iterable[int] = ()
    ) -> int:
        """nixlBackendError, for GPU kernels do not send over kvxfer; nixlNotFoundError: memory that
        is not known either."""
        self._kvx_backends(backends)
        if isinstance(dlist, nixlRemoteDList):
            for i, agent in enumerate(dlist._kvx_more):
                row = dlist._kvx_rows[i : i + 1]
                self._kvx_engine.prepare(agent or "?", dlist._kvx_mem, row)
            if dlist._kvx_count == 0:
                raise nixl_error(nixlNotFoundError, "the list is empty")
        else:
            _need(dlist, nixlXferDList, "dlist")
            self._kvx_engine.prepare("", dlist._kvx_mem, dlist._kvx_rows)
        raise nixl_error(nixlBackendError, "kvxfer has no memory views (HAVE_UCX_GPU_DEVICE_API)")

    def releaseMemView(self, mvh: int) -> None:
        to_int(mvh, "the memory view")

    # --- Metadata -----------------------------------------------------------------------------
    def getLocalMD(self) -> bytes:
        return self._kvx_engine.metadata()

    def getLocalPartialMD(
        self, descs: nixlRegDList, inc_conn_info: bool = False, backends: Iterable[int] = ()
    ) -> bytes:
        return self._kvx_partial(descs, inc_conn_info, backends)

    def _kvx_partial(self, descs: Any, inc_conn_info: bool, backends: Iterable[int]) -> bytes:
        _need(descs, nixlRegDList, "descs")
        self._kvx_backends(backends)
        return self._kvx_engine.partial_metadata(descs, bool(inc_conn_info))

    def loadRemoteMD(self, arg0: bytes, /) -> bytes:
        return self._kvx_engine.load(to_bytes(arg0, "the metadata")).encode()

    def invalidateRemoteMD(self, arg0: str, /) -> nixl_status_t:
        name = to_text(arg0, "the agent")
        if name == self._kvx_engine.name:
            return nixl_status_t.NIXL_ERR_INVALID_PARAM
        return _SUCCESS if self._kvx_engine.remove(name) else nixl_status_t.NIXL_ERR_NOT_FOUND

    def checkRemoteMD(self, arg0: str, arg1: nixlXferDList, /) -> nixl_status_t:
        name = to_text(arg0, "the agent")
        known = self._kvx_engine.knows(name, _need(arg1, nixlXferDList, "the descriptors"))
        return _SUCCESS if known else nixl_status_t.NIXL_ERR_NOT_FOUND

    def makeConnection(self, arg0: str, arg1: Iterable[int], /) -> nixl_status_t:
        self._kvx_backends(arg1)
        self._kvx_engine.connect(to_text(arg0, "the agent"))
        return _SUCCESS

    # --- Metadata by address ------------------------------------------------------------------
    def _kvx_address(self, ip_addr: str, port: int) -> tuple[str, int]:
        host, number = to_text(ip_addr, "ip_addr"), to_port(port)
        if not host:
            raise nixl_error(
                nixlInvalidParamError,
                "no address of a listener, and kvxfer knows no central metadata server (etcd)",
            )
        return host, number

    def sendLocalMD(self, ip_addr: str = "", port: int = 0) -> None:
        self._kvx_courier.send(*self._kvx_address(ip_addr, port), LOAD, self._kvx_engine.metadata())

    def sendLocalPartialMD(
        self,
        descs: nixlRegDList,
        inc_conn_info: bool = False,
        backends: Iterable[int] = (),
        ip_addr: str = "",
        port: int = 0,
        label: str = "",
    ) -> None:
        to_text(label, "the label")
        address = self._kvx_address(ip_addr, port)
        metadata = self._kvx_partial(descs, inc_conn_info, backends)
        self._kvx_courier.send(*address, LOAD, metadata)

    def fetchRemoteMD(
        self, remote_agent: str, ip_addr: str = "", port: int = 0, label: str = ""
    ) -> None:
        to_text(remote_agent, "the agent")
        to_text(label, "the label")
        self._kvx_courier.send(*self._kvx_address(ip_addr, port), FETCH, b"")

    def invalidateLocalMD(self, ip_addr: str = "", port: int = 0) -> None:
        address = self._kvx_address(ip_addr, port)
        self._kvx_courier.send(*address, REMOVE, self._kvx_engine.name.encode())

    # --- Transfers ----------------------------------------------------------------------------
    def prepXferDlist(self, *args: Any, **named: Any) -> int:
        """``(agent_name, descs, backend=[])``, ``(descs, backend=[])`` for local memory, or
        ``(agent_name, mem_type, descs, backend=[])`` where ``descs`` is an array (N, 5)."""
        names = ["agent_name", "descs", "backend"]
        if args and isinstance(args[0], nixlXferDList):
            args = (NIXL_INIT_AGENT, *args)
        elif "mem_type" in named or (len(args) > 1 and isinstance(args[1], nixl_mem_t)):
            names.insert(1, "mem_type")
        if len(args) > len(names) or set(named) - set(names[len(args) :]):
            raise TypeError(f"expected {', '.join(names)}")
        given = {"agent_name": NIXL_INIT_AGENT, **dict(zip(names, args)), **named}
        agent, descs = to_text(given["agent_name"], "agent_name"), given.get("descs")
        self._kvx_backends(given.get("backend", ()))
        if "mem_type" in given:
            mem = _need(given["mem_type"], nixl_mem_t, "mem_type")
            rows = rows_of_array(_need(descs, np.ndarray, "descs"), 5).copy()
        else:
            listed: nixlXferDList = _need(descs, nixlXferDList, "descs")
            mem, rows = listed._kvx_mem, listed._kvx_rows
        return self._kvx_handles.add(self._kvx_engine.prepare(agent, mem, rows))

    def makeXferReq(
        self,
        operation: nixl_xfer_op_t,
        local_side: int,
        local_indices: Any,
        remote_side: int,
        remote_indices: Any,
        notif_msg: bytes = b"",
        backend: Iterable[int] = (),
        skip_desc_merg: bool = False,
    ) -> int:
        _need(operation, nixl_xfer_op_t, "operation")
        message = to_bytes(notif_msg, "notif_msg")
        self._kvx_backends(backend)
        local = self._kvx_handles.get(local_side, PreparedList)
        remote = self._kvx_handles.get(remote_side, PreparedList)
        pairs = pairs_of_prepared(local, local_indices, remote, remote_indices)
        return self._kvx_handles.add(
            self._kvx_engine.new_transfer(
                operation == nixl_xfer_op_t.NIXL_WRITE,
                remote.agent,
                remote.generation,
                pairs,
                message,
                not skip_desc_merg,
            )
        )

    def createXferReq(
        self,
        operation: nixl_xfer_op_t,
        local_descs: nixlXferDList,
        remote_descs: nixlXferDList,
        remote_agent: str,
        notif_msg: bytes = b"",
        backend: Iterable[int] = (),
    ) -> int:
        _need(operation, nixl_xfer_op_t, "operation")
        _need(local_descs, nixlXferDList, "local_descs")
        _need(remote_descs, nixlXferDList, "remote_descs")
        agent, message = to_text(remote_agent, "remote_agent"), to_bytes(notif_msg, "notif_msg")
        self._kvx_backends(backend)
        pairs, generation = self._kvx_engine.pairs(local_descs, remote_descs, agent)
        write = operation == nixl_xfer_op_t.NIXL_WRITE
        return self._kvx_handles.add(
            self._kvx_engine.new_transfer(write, agent, generation, pairs, message, merge=False)
        )

    def estimateXferCost(self, req_handle: int) -> tuple[int, int, int]:
        transfer = self._kvx_handles.get(req_handle, Transfer)
        return (*self._kvx_engine.estimate(transfer), 0)

    def postXferReq(self, reqh: int, notif_msg: bytes = b"") -> nixl_status_t:
        message = to_bytes(notif_msg, "notif_msg")
        done = self._kvx_engine.post(self._kvx_handles.get(reqh, Transfer), message)
        return _SUCCESS if done else _IN_PROG

    def getXferStatus(self, arg0: int, /) -> nixl_status_t:
        done = self._kvx_engine.is_done(self._kvx_handles.get(arg0, Transfer))
        return _SUCCESS if done else _IN_PROG

    def getXferTelemetry(self, reqh: int) -> nixlXferTelemetry:
        transfer: Transfer = self._kvx_handles.get(reqh, Transfer)
        if not self._kvx_telemetry:
            raise nixl_error(nixlNoTelemetryError, "the agent was made without captureTelemetry")
        return transfer.telemetry()

    def queryXferBackend(self, arg0: int, /) -> int:
        """The first that was created: the names all stand for kvxfer."""
        self._kvx_handles.get(arg0, Transfer)
        return next(iter(self._kvx_engine.backends.values()))

    def releaseXferReq(self, arg0: int, /) -> nixl_status_t:
        """Cancels it where it is under way, and waits up to 1.5 s until nothing of it can move any
        more. nixlRepostActiveError: something can; the handle stays. A finaliser does not wait."""
        transfer: Transfer = self._kvx_handles.get(arg0, Transfer)
        if FINALISING.depth:
            self._kvx_handles.drop(arg0)
            transfer.cancel(wait=False)
        else:
            transfer.cancel(wait=True)
            self._kvx_handles.drop(arg0)
        return _SUCCESS

    def releasedDlistH(self, arg0: int, /) -> nixl_status_t:
        self._kvx_handles.get(arg0, PreparedList)
        self._kvx_handles.drop(arg0)
        return _SUCCESS

    # --- Notifications ------------------------------------------------------------------------
    def getNotifs(
        self, notif_map: Mapping[str, list[bytes]], backends: Iterable[int] = ()
    ) -> dict[str, list[bytes]]:
        """A copy of ``notif_map`` with what has come since the last call."""
        self._kvx_backends(backends)
        all_of_them = {name: list(messages) for name, messages in notif_map.items()}
        self._kvx_engine.take_notifications(all_of_them)
        return all_of_them

    def genNotif(
        self, remote_agent: str, msg: bytes, backends: Iterable[int] = ()
    ) -> nixl_status_t:
        agent, message = to_text(remote_agent, "remote_agent"), to_bytes(msg, "msg")
        self._kvx_backends(backends)
        self._kvx_engine.notify(agent, message)
        return _SUCCESS

"""A script of everything that nixl_agent has, over an agent of the bindings that only writes down
what it is asked, for cases_patched.py."""

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np


class Trace:
    """Stands for nixlAgent: what it is asked, and some answer."""

    ANSWERS = {
        "getAvailPlugins": ["UCX", "OBJ", "GDS_MT", "UCCL", "LIBFABRIC"],
        "getPluginParams": ({"p": "1"}, ["DRAM_SEG"]),
        "getBackendParams": ({"q": "2"}, ["VRAM_SEG"]),
        "createBackend": 11,
        "prepXferDlist": 21,
        "makeXferReq": 31,
        "createXferReq": 32,
        "estimateXferCost": (5, 6, 0),
        "queryXferBackend": 11,
        "prepMemView": 41,
        "loadRemoteMD": b"b",
        "getLocalMD": b"md",
        "getLocalPartialMD": b"part",
        "queryMem": [None],
    }

    def __init__(self, rec: Any, lines: list[str], answers: dict[str, Any]) -> None:
        self._rec, self._lines, self._answers = rec, lines, self.ANSWERS | answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> Any:
            given = f"{self._rec.show(arguments)} {self._rec.show(named)}"
            self._lines.append(f"  asked {name} {given}")
            if name == "getNotifs":
                return {**arguments[0], "b": [b"tag", b"tag2", b"xtag"]}
            return self._answers.get(name, 0)

        return call


def _config(config: Any) -> list[str]:
    return [
        f"{name}={value}"
        for name in dir(config)
        if not name.startswith("_") and not callable(value := getattr(config, name))
    ]


def run(nixl: Any, rec: Any, **answers: Any) -> list[str]:
    """What happened, line by line. ``answers``: of the agent, in place of Trace.ANSWERS."""
    lines: list[str] = []
    _script(nixl, rec, lines, answers)
    return lines


def _script(nixl: Any, rec: Any, lines: list[str], answers: dict[str, Any]) -> None:
    api, b = nixl.api, nixl.bindings

    def call(label: str, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        try:
            value = function(*arguments, **named)
        except Exception as error:
            lines.append(f"{label} raises {type(error).__name__}")
            return None
        lines.append(f"{label}: {rec.show(value)}")
        return value

    def make(name: str, config: Any) -> Trace:
        lines.append(f"  made {name!r} {type(config).__name__} {_config(config)}")
        return Trace(rec, lines, answers)

    with contextlib.ExitStack() as stack:
        if isinstance(b.nixlAgent, type):
            stack.enter_context(mock.patch.object(b, "nixlAgent", make))
        for listens in (False, True):
            for mode in (None, "NIXL_THREAD_SYNC_NONE", "NIXL_THREAD_SYNC_RW"):
                sync = getattr(api.nixl_thread_sync_t, mode) if mode else None
                named = {"enable_listen_thread": listens, "sync_mode": sync}
                call("agent", lambda n=named: api.nixl_agent("n", api.nixl_agent_config(**n)).name)
        call("refused", api.nixl_agent_config, sync_mode=1)
        call("none", lambda: api.nixl_agent("n").name)
        call("all", lambda: api.nixl_agent("n", None, True).name)
        both = api.nixl_agent_config(True, True, 0, True, 3, ["UCX", "OBJ", "GDS_MT", "UCCL", "NO"])
        call("both", lambda: api.nixl_agent("n", both, True).name)
        agent = call("made", api.nixl_agent, "a", api.nixl_agent_config(backends=["UCX"]))
        if agent is None:
            return
        for name in ("notifs", "backends", "backend_mems", "backend_options", "plugin_list"):
            call(name, getattr, agent, name)
        for name in ("plugin_b_options", "plugin_mem_types", "nixl_mems", "nixl_ops"):
            call(name, getattr, agent, name)
        _calls(nixl, agent, call)


def _calls(nixl: Any, agent: Any, call: Callable[..., Any]) -> None:
    names = ["UCX"]
    for plugin in ("UCX", "UCX", "NOPE"):
        for method in ("get_plugin_mem_types", "get_plugin_params"):
            call(method, getattr(agent, method), plugin)
        for method in ("get_backend_mem_types", "get_backend_params"):
            call(method, getattr(agent, method), plugin)
    call("plugins", agent.get_plugin_list)
    call("create", agent.create_backend, "OBJ", {"x": "y"})
    call("create by default", agent.create_backend, "UCCL")
    row = (16, 8, 0)
    regs = call("registration list", agent.get_reg_descs, [(*row, "m")], "DRAM")
    descs = call("list", agent.get_xfer_descs, [row, row], "DRAM")
    remote = call("remote list", agent.get_remote_descs, [(*row, "b")], "VRAM")
    for name in ("get_reg_descs", "get_xfer_descs", "get_remote_descs"):
        for given in (regs, descs, remote):
            if given is not None:
                call(f"{name} of a list", getattr(agent, name), given, "DRAM")
        call(f"{name} of an array", getattr(agent, name), np.ones((2, 3), np.uint64), "DRAM")
        call(f"{name}, no mem_type", getattr(agent, name), [row])
        whole = row if name == "get_xfer_descs" else (*row, "m")
        call(f"{name}, bad mem_type", getattr(agent, name), [whole], "X")
    for method, arguments in {
        "register_memory": ([(*row, "m")], "DRAM"),
        "deregister_memory": (regs,),
        "make_connection": ("b",),
        "get_new_notifs": (),
        "update_notifs": (),
        "get_partial_agent_metadata": (regs, True),
        "send_partial_agent_metadata": (regs, True),
        "prep_xfer_dlist": ("b", [row], "DRAM"),
        "check_remote_xfer_done": ("b", b"tag"),
    }.items():
        call(method, getattr(agent, method), *arguments)
        call(f"{method} over", getattr(agent, method), *arguments, backends=names)
        call(f"{method} over none", getattr(agent, method), *arguments, backends=["NOPE"])
    call("query", agent.query_memory, [(*row, "m")], "UCX", "DRAM")
    call("query of none", agent.query_memory, [(*row, "m")], "NOPE", "DRAM")
    for given in ("", "NIXL_INIT_AGENT"):
        call("prepare here", agent.prep_xfer_dlist, given, [row], "DRAM")
        call("prepare strips", agent.prep_xfer_dlist, given, np.ones((2, 5), np.uint64), "DRAM")
    call("prepare untyped", agent.prep_xfer_dlist, "b", np.ones((2, 5), np.uint64))
    _transfers(nixl, agent, call, descs)
    _notifications(agent, call)
    call("metadata", agent.get_agent_metadata)
    call("add", agent.add_remote_agent, b"md")
    call("remove", agent.remove_remote_agent, "b")
    call("check", agent.check_remote_metadata, "b")
    call("check a list", agent.check_remote_metadata, "b", descs)
    for given in ((), ("h",), ("h", 5)):
        call("send", agent.send_local_metadata, *given)
        call("fetch", agent.fetch_remote_metadata, "b", *given)
        call("invalidate", agent.invalidate_local_metadata, *given)
    call("send a part", agent.send_partial_agent_metadata, regs, False, names, "h", 5, "l")
    call("fetch by label", agent.fetch_remote_metadata, "b", label="l")


def _transfers(nixl: Any, agent: Any, call: Callable[..., Any], descs: Any) -> None:
    side = call("side", agent.prep_xfer_dlist, "b", descs)
    for operation in ("READ", "WRITE", "RD"):
        given = (operation, side, [0], side, [1])
        call("make", agent.make_prepped_xfer, *given)
        call("make all", agent.make_prepped_xfer, *given, b"n", ["UCX"], True)
        call("initialize", agent.initialize_xfer, operation, descs, descs, "b")
        call("with all", agent.initialize_xfer, operation, descs, descs, "b", b"n", ["UCX"])
    handle = call("handle", agent.initialize_xfer, "READ", descs, descs, "b")
    call("post", agent.transfer, handle)
    call("post with a message", agent.transfer, handle, b"n")
    call("state", agent.check_xfer_state, handle)
    call("telemetry", agent.get_xfer_telemetry, handle)
    call("estimate", agent.estimate_xfer_cost, handle)
    call("backend", agent.query_xfer_backend, handle)
    call("release", agent.release_xfer_handle, handle)
    call("release a list", agent.release_dlist_handle, side)
    call("view", agent.prep_mem_view, descs)
    call("view over", agent.prep_mem_view, descs, backends=["UCX"])
    call("release a view", agent.release_mem_view, 41)


def _notifications(agent: Any, call: Callable[..., Any]) -> None:
    for tag in (b"tag", b"tag2", b"x", b"zz", b""):
        call(f"done {tag!r}", agent.check_remote_xfer_done, "b", tag)
        call("anywhere", agent.check_remote_xfer_done, "b", tag, tag_is_prefix=False)
    call("of nobody", agent.check_remote_xfer_done, "c", b"tag")
    call("notify", agent.send_notif, "b", b"n")
    call("kept", getattr, agent, "notifs")

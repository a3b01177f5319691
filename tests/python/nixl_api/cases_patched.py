"""Names of both modules that a program patches, and which part of NIXL sees what is in their place.

A script calls everything that nixl_agent has, over an agent of the bindings that only writes down
what it is asked. It runs once as it is, and once for each name with something else in its place;
the lines that are then different are what the two implementations have to agree on.
"""

import contextlib
import importlib
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

ALIASES = ("nixl._bindings", "nixl_cu13._bindings")

def _public(module: Any, nixl: Any) -> list[str]:
    """NIXL's names, which the drop-in has as well; the same on both sides."""
    if module is nixl.bindings:
        return sorted(name for name in dir(module) if not name.startswith("_"))
    return [
        "DEFAULT_COMM_PORT",
        "get_logger",
        "nixl_agent",
        "nixl_agent_config",
        "nixl_backend_handle",
        "nixl_prepped_dlist_handle",
        "nixl_thread_sync_t",
        "nixl_xfer_handle",
    ]


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
            self._lines.append(f"  asked {name} {self._rec.show(arguments)} {self._rec.show(named)}")
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
        call(f"{name}, bad mem_type", getattr(agent, name), [(*row, "m")[: 3 + ("x" not in name)]], "X")
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


def _run(nixl: Any, rec: Any, **answers: Any) -> list[str]:
    lines: list[str] = []
    _script(nixl, rec, lines, answers)
    return lines


def case_what_is_asked(nixl: Any, rec: Any) -> None:
    rec.lines += _run(nixl, rec)


def case_other_answers(nixl: Any, rec: Any) -> None:
    """What becomes of answers that the bindings seldom give."""
    b, plain = nixl.bindings, _run(nixl, rec)
    for label, answers in {
        "in progress": {"postXferReq": b.NIXL_IN_PROG, "getXferStatus": 1},
        "an error": {"postXferReq": b.NIXL_ERR_BACKEND, "getXferStatus": 7},
        "not found": {"checkRemoteMD": b.NIXL_ERR_NOT_FOUND, "queryXferBackend": 99},
        "cost by the backend": {"estimateXferCost": (1, 2, b.NIXL_COST_ANALYTICAL_BACKEND)},
        "no plugins": {"getAvailPlugins": []},
        "nothing known": {"getPluginParams": None, "loadRemoteMD": None},
    }.items():
        rec.lines.append(label)
        rec.lines += [line for line in _run(nixl, rec, **answers) if line not in plain]


def _in_place(nixl: Any, name: str, value: Any) -> Any:
    """Something that is told from the value, and does what the value does."""
    if value is nixl.api.nixl_thread_sync_t:
        names = [f"NIXL_THREAD_SYNC_{name}" for name in ("NONE", "STRICT", "RW")]
        others = [*names[1:], names[0]]
        members = {n: getattr(nixl.bindings, other) for n, other in zip(names, others)}
        return Enum("Patched", members)
    if value is nixl.api.nixl_agent_config:

        class Patched(value):  # type: ignore[misc]
            def __init__(self, *arguments: Any, **named: Any) -> None:
                super().__init__(*arguments, **named)
                self.port = 7

        return Patched
    if isinstance(value, type) and hasattr(value, "__members__"):
        return value  # of the bindings: members are names of their own
    if isinstance(value, type) and value is not int:
        return type(f"Patched_{name}", (value,), {})
    return f"<{name}>"


def case_each_name(nixl: Any, rec: Any) -> None:
    plain = _run(nixl, rec)
    for module in (nixl.bindings, nixl.api):
        for name in _public(module, nixl):
            if module is nixl.bindings and name == "nixlAgent":
                continue
            rec.lines.append(f"{name} patched")
            value = _in_place(nixl, name, getattr(module, name))
            with mock.patch.object(module, name, value):
                try:
                    lines = _run(nixl, rec)
                except Exception as error:
                    lines = [f"ended with {type(error).__name__}"]
            rec.lines += [f"  {line}" for line in lines if line not in plain]


def case_agent_by_path(nixl: Any, rec: Any) -> None:
    """Whichever name of the module it is patched by, nixl_agent makes that one."""
    for path in (*ALIASES, "nixl._api.nixlBind", "nixl_cu13._api.nixlBind"):
        made: list[Any] = []

        class Spy(nixl.bindings.nixlAgent):  # type: ignore[misc, name-defined]
            def __init__(self, name: str, config: Any) -> None:
                super().__init__(name, config)
                made.append(config.syncMode)

        with mock.patch(f"{path}.nixlAgent", Spy):
            rec.call(path, lambda: type(nixl.api.nixl_agent("a").agent).__name__)
        rec.call("made", lambda: made)
    rec.call("back", lambda: type(nixl.api.nixl_agent("a").agent).__name__)


def case_one_module(nixl: Any, rec: Any) -> None:
    load = importlib.import_module
    for name in ("_api", "_bindings", "_utils"):
        rec.call(name, lambda name=name: load(f"nixl.{name}") is load(f"nixl_cu13.{name}"))
        rec.call("attribute", lambda name=name: getattr(load("nixl"), name) is load(f"nixl.{name}"))
    rec.call("nixlBind", lambda: nixl.api.nixlBind is nixl.bindings)
    rec.call("loggers", lambda: load("nixl.logging") is load("nixl_cu13.logging"))
    for name in ("nixl_agent", "nixl_agent_config", "nixl_xfer_handle"):
        rec.call(name, lambda n=name: getattr(load("nixl"), n) is getattr(load("nixl_cu13"), n))


def case_agent_replaced(nixl: Any, rec: Any) -> None:
    """Attributes of a nixl_agent that a program replaces."""
    agent, lines = nixl.api.nixl_agent("a"), []
    agent.agent = Trace(rec, lines, {})
    agent.nixl_mems = {"MINE": nixl.bindings.BLK_SEG}
    agent.nixl_ops = {"PUT": nixl.bindings.NIXL_WRITE}
    agent.backends = {"X": 5}
    agent.plugin_list = ["P"]
    agent.backend_mems = {"X": ["m"]}
    agent.backend_options = {"X": {"o": "1"}}
    agent.plugin_mem_types = {"P": ["t"]}
    agent.notifs = {"b": [b"old"]}
    rec.call("memory", agent.register_memory, [(1, 2, 3, "")], "MINE", ["X"])
    rec.call("not any more", agent.register_memory, [(1, 2, 3, "")], "DRAM")
    listed = agent.get_xfer_descs([(1, 2, 3)], "MINE")
    rec.call("operation", agent.initialize_xfer, "PUT", listed, listed, "b")
    rec.call("not any more", agent.initialize_xfer, "WRITE", listed, listed, "b")
    rec.call("backend", agent.get_backend_mem_types, "X")
    rec.call("its options", agent.get_backend_params, "X")
    rec.call("plugin", agent.get_plugin_mem_types, "P")
    rec.call("its parameters", agent.get_plugin_params, "P")
    rec.call("plugins", agent.get_plugin_list)
    rec.call("notifications", agent.check_remote_xfer_done, "b", b"tag")
    rec.call("kept", lambda: agent.notifs)
    agent.get_xfer_descs = lambda descs, mem_type=None: ("mine", descs)
    agent.get_reg_descs = lambda descs, mem_type=None: ("mine", descs)
    rec.call("own lists", lambda: type(agent.prep_xfer_dlist("b", [1], "MINE")).__name__)
    rec.call("own registration lists", agent.register_memory, [1])
    rec.lines += lines


def case_logger(nixl: Any, rec: Any) -> None:
    """Warnings and errors go to the logger of nixl._api, whichever that is."""
    said: list[str] = []
    quiet = mock.Mock()
    quiet.warning = lambda *_, **__: said.append("warning")
    quiet.error = lambda *_, **__: said.append("error")
    with mock.patch.object(nixl.api, "logger", quiet):
        agent = nixl.api.nixl_agent("a", nixl.api.nixl_agent_config(backends=["NOPE"]))
        agent.get_plugin_params("NOPE")
        agent.get_backend_params("NOPE")
        agent.get_xfer_descs([(1, 2, 3)])
        agent.get_reg_descs([(1, 2, 3)], "DRAM")
        nixl.api.nixl_agent("a", nixl.api.nixl_agent_config(backends=[]), True)
    rec.call("said", lambda: said)


def case_keywords(nixl: Any, rec: Any) -> None:
    """By which names the bindings' calls take their arguments."""
    b = nixl.bindings
    agent = b.nixlAgent("a", b.nixlAgentConfig())
    descs, regs = b.nixlXferDList(b.DRAM_SEG), b.nixlRegDList(b.DRAM_SEG)
    known = {
        "queryMem": {"descs": regs, "backend": 0},
        "deregisterMem": {"descs": regs, "backends": []},
        "registerMem": {"descs": regs, "backends": []},
        "getLocalPartialMD": {"descs": regs, "inc_conn_info": True, "backends": []},
        "getNotifs": {"notif_map": {}, "backends": []},
        "genNotif": {"remote_agent": "b", "msg": b"", "backends": []},
        "fetchRemoteMD": {"remote_agent": "b", "ip_addr": "", "port": 0, "label": ""},
        "sendLocalMD": {"ip_addr": "", "port": 0},
        "invalidateLocalMD": {"ip_addr": "", "port": 0},
        "prepXferDlist": {"agent_name": "zz", "descs": descs, "backend": []},
        "getPluginParams": {"arg0": "UCX"},
        "createBackend": {"arg0": "UCX", "arg1": {}},
        "loadRemoteMD": {"arg0": b"x"},
        "invalidateRemoteMD": {"arg0": "b"},
        "checkRemoteMD": {"arg0": "b", "arg1": descs},
        "makeConnection": {"arg0": "b", "arg1": []},
    }
    for name, arguments in known.items():
        # Without a backend: no address is valid, so nothing is reached.
        if name not in ("queryMem", "getLocalPartialMD"):
            rec.call(name, lambda n=name, a=arguments: getattr(agent, n)(**a))
        rec.call(f"{name}, one more", lambda n=name, a=arguments: getattr(agent, n)(**a, more=1))
    rec.call("constructor", lambda: b.nixlAgent(name="a", config=b.nixlAgentConfig()))
    spaces = SimpleNamespace(useListenThread=False)
    rec.call("another kind of configuration", b.nixlAgent, "a", spaces)

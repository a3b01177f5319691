"""Names of both modules that a program patches, and which part of NIXL sees what is in their place.

The script of nixl_script.py runs once as it is, and once for each name with something else in its
place; the lines that are then different are what the two implementations have to agree on.
"""

import importlib
from enum import Enum
from types import SimpleNamespace
from typing import Any
from unittest import mock

from nixl_script import Trace, run

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


def case_what_is_asked(nixl: Any, rec: Any) -> None:
    rec.lines += run(nixl, rec)


def case_other_answers(nixl: Any, rec: Any) -> None:
    """What becomes of answers that the bindings seldom give."""
    b, plain = nixl.bindings, run(nixl, rec)
    for label, answers in {
        "in progress": {"postXferReq": b.NIXL_IN_PROG, "getXferStatus": 1},
        "an error": {"postXferReq": b.NIXL_ERR_BACKEND, "getXferStatus": 7},
        "not found": {"checkRemoteMD": b.NIXL_ERR_NOT_FOUND, "queryXferBackend": 99},
        "cost by the backend": {"estimateXferCost": (1, 2, b.NIXL_COST_ANALYTICAL_BACKEND)},
        "no plugins": {"getAvailPlugins": []},
        "nothing known": {"getPluginParams": None, "loadRemoteMD": None},
    }.items():
        rec.lines.append(label)
        rec.lines += [line for line in run(nixl, rec, **answers) if line not in plain]


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
    plain = run(nixl, rec)
    for module in (nixl.bindings, nixl.api):
        for name in _public(module, nixl):
            if module is nixl.bindings and name == "nixlAgent":
                continue
            rec.lines.append(f"{name} patched")
            value = _in_place(nixl, name, getattr(module, name))
            with mock.patch.object(module, name, value):
                try:
                    lines = run(nixl, rec)
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
    rec.differs(
        "that of CUDA 12, where NIXL is installed for CUDA 13",
        "raises ModuleNotFoundError",
        "True",
        lambda: load("nixl_cu12._bindings") is nixl.bindings and load("nixl_cu12._api") is nixl.api,
    )
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

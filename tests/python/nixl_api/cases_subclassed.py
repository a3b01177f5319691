"""Classes of both modules with a class of a program's above them, and patched in place."""

import copy
import inspect
import pickle
import weakref
from typing import Any
from unittest import mock

from nixl_record import Pair, run_to_end

CLASSES = (
    "nixlAgent",
    "nixlAgentConfig",
    "nixlXferDList",
    "nixlRegDList",
    "nixlRemoteDList",
    "nixlXferTelemetry",
)


def _made(nixl: Any, name: str, kind: Any = None) -> Any:
    b = nixl.bindings
    arguments: tuple[Any, ...] = {
        "nixlAgent": ("a", b.nixlAgentConfig()),
        "nixlAgentConfig": (),
        "nixlXferDList": (b.DRAM_SEG, [(1, 2, 3)]),
        "nixlRegDList": (b.DRAM_SEG, [(1, 2, 3, "m")]),
        "nixlRemoteDList": (b.DRAM_SEG, [(1, 2, 3, "m")]),
        "nixlXferTelemetry": (),
    }[name]
    return (kind or getattr(b, name))(*arguments)


def _methods(kind: Any) -> list[str]:
    """Those that a program may override."""
    return [n for n in dir(kind) if not n.startswith("_") and callable(getattr(kind, n))]


def case_objects(nixl: Any, rec: Any) -> None:
    for name in CLASSES:
        one = _made(nixl, name)
        rec.call(f"{name}, bool", bool, one)
        rec.call("len", len, one)
        rec.call("equal", lambda one=one: (one == one, one != one, one == 1))
        rec.call("to None", lambda one=one: one == None)  # noqa: E711
        rec.call("by __eq__", lambda one=one: one.__eq__(1) is NotImplemented)
        rec.call("order", lambda one=one: one < one)
        rec.call("hash", lambda one=one: type(hash(one)))
        rec.call("new attribute", setattr, one, "extra", 1)
        rec.call("dict", lambda one=one: one.__dict__)
        rec.call("weak reference", lambda one=one: weakref.ref(one)() is one)
        for method in _methods(type(one))[:2]:
            rec.call(f"attribute {method}", setattr, one, method, 1)
        rec.call("attribute of the class", setattr, type(one), "extra", 5)
        rec.call("seen", lambda one=one: one.extra)
        rec.call("and not", delattr, type(one), "extra")
        rec.call("copied", copy.copy, one)
        rec.call("deeply", lambda one=one: copy.deepcopy(one) == one)
        for protocol in (2, 3, 4, 5):
            rec.call(
                f"pickled, {protocol}",
                lambda one=one, p=protocol: pickle.loads(pickle.dumps(one, p)) == one,
            )


def case_properties(nixl: Any, rec: Any) -> None:
    for name in ("nixlAgentConfig", "nixlXferTelemetry"):
        kind = getattr(nixl.bindings, name)
        for each in [each for each in dir(kind) if not each.startswith("_")]:
            rec.call(f"{name}.{each}", lambda k=kind, n=each: type(inspect.getattr_static(k, n)))
            rec.call("deleted", delattr, kind(), each)
            if name == "nixlXferTelemetry":
                rec.call("set", setattr, kind(), each, 1)


def case_constructor_not_called(nixl: Any, rec: Any) -> None:
    for name in CLASSES:
        kind = getattr(nixl.bindings, name)

        class Silent(kind):  # type: ignore[misc, valid-type]
            def __init__(self, *arguments: Any) -> None:
                self.arguments = arguments

        class Loud(kind):  # type: ignore[misc, valid-type]
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.arguments = arguments

        rec.call(f"{name}, not", Silent, 1)
        rec.call("called", lambda n=name, k=Loud: isinstance(_made(nixl, n, k), k))
        rec.call("attribute", lambda n=name, k=Loud: len(_made(nixl, n, k).arguments))


def case_lists(nixl: Any, rec: Any) -> None:
    kinds = [getattr(nixl.bindings, name) for name in CLASSES[2:5]]
    for kind in kinds:

        class Mine(kind):  # type: ignore[misc, valid-type]
            pass

        name = kind.__name__
        mine, base = _made(nixl, name, Mine), _made(nixl, name)
        rec.call(f"{name}, equal", lambda a=mine, b=base: (a == b, b == a, a != b))
        rec.call("to others", lambda a=mine: [a == _made(nixl, k.__name__) for k in kinds])
        rec.call("pickled", lambda a=base: pickle.loads(pickle.dumps(a)).descCount())
        rec.call("copied", lambda a=mine: type(copy.copy(a)).__name__)
        rec.call("attribute", setattr, mine, "extra", 1)
        rec.call("not of the copy", lambda a=mine: copy.copy(a).extra)
    rec.call("trimmed", lambda: type(_made(nixl, "nixlRegDList").trim()).__name__)


class _Overrides:
    """What was called of a subclass that overrides every method, each of which calls the base."""

    def __init__(self, kind: Any) -> None:
        self.calls: list[str] = []
        self.kind = type("Mine", (kind,), {name: self._of(kind, name) for name in _methods(kind)})

    def _of(self, kind: Any, name: str) -> Any:
        def override(this: Any, *arguments: Any, **named: Any) -> Any:
            self.calls.append(name)
            return getattr(kind, name)(this, *arguments, **named)

        return override


def case_overridden(nixl: Any, rec: Any) -> None:
    """What is implemented calls none of the program's methods."""
    for name in CLASSES[2:5]:
        seen = _Overrides(getattr(nixl.bindings, name))
        one = _made(nixl, name, seen.kind)
        for method, arguments in {
            "getType": (),
            "descCount": (),
            "isEmpty": (),
            "addDesc": (one[0],),
            "append": (one[0],),
            "index": (one[0],),
            "trim": (),
            "remDesc": (0,),
            "clear": (),
        }.items():
            if hasattr(one, method):
                rec.call(f"{name}.{method}", getattr(one, method), *arguments)
        rec.call("calls", lambda seen=seen: seen.calls)


def case_overridden_agent(nixl: Any, rec: Any) -> None:
    b, memory = nixl.bindings, rec.buffer("m", 64)
    seen = _Overrides(b.nixlAgent)
    lists = [_Overrides(getattr(b, name)) for name in ("nixlXferDList", "nixlRegDList")]
    agent = seen.kind("a", b.nixlAgentConfig())
    rec.call("backend", lambda: type(agent.createBackend("UCX", {})))
    row = (memory.ctypes.data, 64, 0)
    given = lists[1].kind(b.DRAM_SEG, [(*row, "")])
    listed = lists[0].kind(b.DRAM_SEG, [row])
    rec.call("register", agent.registerMem, given)
    rec.call("metadata", lambda: type(agent.getLocalMD()))
    rec.call("partial", lambda: type(agent.getLocalPartialMD(given, True)))
    rec.call("send", agent.sendLocalPartialMD, given, True, [], "", 0)
    prepared = rec.call("prepare", lambda: type(agent.prepXferDlist(listed)))
    rec.check("a handle", prepared is int)
    rec.call("check", agent.checkRemoteMD, "zz", listed)
    rec.call("view", agent.prepMemView, given)
    rec.call("deregister", agent.deregisterMem, given)
    rec.call("calls", lambda: (seen.calls, [each.calls for each in lists]))


def case_patched_methods(nixl: Any, rec: Any) -> None:
    """A method of the class replaced while agents of it are there, and put back."""
    agent, calls = nixl.api.nixl_agent("a"), []
    for name in _methods(nixl.bindings.nixlAgent):
        with mock.patch.object(nixl.bindings.nixlAgent, name, lambda *a, n=name: calls.append(n)):
            rec.call(name, getattr(agent.agent, name))
    rec.call("calls", lambda: calls)
    rec.call("back", lambda: "UCX" in agent.agent.getAvailPlugins())


def case_api_overridden(nixl: Any, rec: Any) -> None:
    """Which public methods of nixl_agent are called by others, and so may be overridden."""
    seen = _Overrides(nixl.api.nixl_agent)

    def calls(label: str, call: Any, *arguments: Any) -> Any:
        seen.calls.clear()
        value = rec.call(label, call, *arguments)
        rec.lines.append(f"{label} called {seen.calls}")
        return value

    with mock.patch.object(nixl.api, "nixl_agent", seen.kind):
        pair = Pair(nixl, rec)
    rec.lines.append(f"two agents called {sorted(set(seen.calls))}")
    a, b = pair.a, pair.b
    row = (pair.pa, 64, 0)
    regs = calls("register", a.register_memory, [(*row, "")], "DRAM")
    calls("query", a.query_memory, [(*row, "")], "UCX", "DRAM")
    calls("deregister", a.deregister_memory, regs)
    local = calls("prepare", a.prep_xfer_dlist, "", [row], "DRAM")
    remote = calls("prepare there", a.prep_xfer_dlist, "b", [(pair.pb, 64, 0)], "DRAM")
    handle = calls("transfer", a.make_prepped_xfer, "WRITE", local, [0], remote, [0], b"x")
    rec.call("run", run_to_end, a, handle)
    calls("release", a.release_xfer_handle, handle)
    calls("release lists", a.release_dlist_handle, local)
    calls("notifications", b.check_remote_xfer_done, "zz", b"x")
    calls("metadata", a.check_remote_metadata, "b")
    calls("params", a.get_plugin_params, "UCX")
    calls("mems", a.get_plugin_mem_types, "UCX")
    calls("serialized", lambda: type(a.get_serialized_descs(pair.at_a((0, 64)))))
    calls("remove", a.remove_remote_agent, "b")


def case_api_subclassed(nixl: Any, rec: Any) -> None:
    api = nixl.api

    class Config(api.nixl_agent_config):  # type: ignore[misc, name-defined]
        def __init__(self, **named: Any) -> None:
            super().__init__(**named)
            self.extra = 1

    class Handle(api.nixl_xfer_handle):  # type: ignore[misc, name-defined]
        pass

    rec.call("config", lambda: api.nixl_agent("a", Config(backends=[])).name)
    fake = mock.Mock()
    for kind in (api.nixl_xfer_handle, api.nixl_prepped_dlist_handle, Handle):
        one = kind(fake, 18)
        rec.call(f"{kind.__name__}", repr, one)
        rec.call("release", one.release)
        rec.call("released", repr, one)
        rec.call("again", one.release)
        rec.call("dropped", lambda kind=kind: bool(kind(fake, 19)))
        rec.call("attribute", setattr, one, "extra", 1)
        rec.call("weak reference", lambda one=one: weakref.ref(one)() is one)
        rec.call("not a number", kind, fake, "x")
    rec.call("what was asked", lambda: [str(call) for call in fake.method_calls])
    rec.call("no enumeration to derive from", type, "Mine", (api.nixl_thread_sync_t,), {})

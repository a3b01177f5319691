"""How members of the enumerations behave: they are no enumerations of Python's."""

import copy
import json
import operator
import pickle
from typing import Any

import numpy as np

KINDS = ("nixl_mem_t", "nixl_xfer_op_t", "nixl_status_t", "nixl_thread_sync_t", "nixl_cost_t")


class _Index:
    def __index__(self) -> int:
        return 0


class _Int:
    def __int__(self) -> int:
        return 0


def _members(nixl: Any) -> list[Any]:
    """The first of each kind."""
    kinds = [getattr(nixl.bindings, kind) for kind in KINDS]
    return [next(iter(kind.__members__.values())) for kind in kinds]


def case_numbers(nixl: Any, rec: Any) -> None:
    for member in _members(nixl):
        for function in (repr, str, format, bool, int, float, complex, hash, operator.index, range):
            rec.call(f"{function.__name__}({member!r})", lambda f=function, m=member: repr(f(m)))
        rec.call("as an index", lambda m=member: [7, 8][m])
        rec.call("formatted", lambda m=member: "%d %s" % (m, m))
        rec.call("to a width", format, member, ">20")
        rec.call("an int", isinstance, member, int)
        rec.call("in JSON", json.dumps, member)
        for function in (operator.neg, operator.invert, round, len, iter):
            rec.call(function.__name__, function, member)


def case_operators(nixl: Any, rec: Any) -> None:
    names = ("lt", "le", "gt", "ge", "add", "sub", "mul", "and_", "or_", "xor", "lshift", "mod")
    for member in _members(nixl):
        for name in names:
            function = getattr(operator, name)
            rec.call(f"{member} {name} itself", function, member, member)
            rec.call(f"{member} {name} 1", function, member, 1)
            rec.call(f"1 {name} {member}", function, 1, member)


def case_equality(nixl: Any, rec: Any) -> None:
    zeros = [getattr(nixl.bindings, kind)(0) for kind in KINDS]
    others = [*zeros, 0, False, 0.0, np.int64(0), np.uint8(0), _Index(), _Int(), "0", None, 1]
    for zero in zeros:
        for at, other in enumerate(others):
            rec.call(f"{zero} and {at}", lambda z=zero, o=other: (z == o, z != o, bool(o == z)))
    rec.call("as keys", lambda: {nixl.bindings.VRAM_SEG: 1}[1])
    rec.call("as strict keys", lambda: {nixl.bindings.NIXL_THREAD_SYNC_RW: 1}[2])


def case_construction(nixl: Any, rec: Any) -> None:
    for name in KINDS:
        kind = getattr(nixl.bindings, name)
        for value in (0, 1, -1, 99, True, np.int64(1), 2**31, 2**40, 1.0, "0", None, _Int()):
            rec.call(f"{name}({value if type(value) is not _Int else '_Int'})", kind, value)
        rec.call("of another kind", kind, nixl.bindings.NIXL_SUCCESS)
        rec.call("nothing", kind)
        rec.call("two", kind, 0, 0)
        rec.call("by name", lambda kind=kind: kind(value=0))
        rec.call("of no name", lambda kind=kind: (kind(77).name, repr(kind(77)), kind(77).value))
        rec.call("a new one", lambda kind=kind: kind(0) is kind(0))


def case_classes(nixl: Any, rec: Any) -> None:
    for name in KINDS:
        kind = getattr(nixl.bindings, name)
        first = next(iter(kind.__members__))
        rec.call(f"{name}, members", lambda kind=kind: list(map(repr, kind.__members__.values())))
        rec.call("iterated", iter, kind)
        rec.call("len", len, kind)
        rec.call("subscript", lambda kind=kind, first=first: kind[first])
        rec.call("contains", lambda kind=kind: 0 in kind)
        rec.call("of a member", lambda kind=kind, first=first: getattr(kind(0), first))
        rec.call("members of a member", lambda kind=kind: len(kind(0).__members__))
        public = [each for each in dir(kind) if not each.startswith("_")]
        rec.call("dir", lambda public=public: public)
        rec.call("name", lambda kind=kind: (kind.__name__, kind.__qualname__))


def case_aliases(nixl: Any, rec: Any) -> None:
    b = nixl.bindings
    rec.call("default", repr, b.NIXL_THREAD_SYNC_DEFAULT)
    rec.call("its name", lambda: b.NIXL_THREAD_SYNC_DEFAULT.name)
    rec.call("the same", lambda: b.NIXL_THREAD_SYNC_DEFAULT is b.NIXL_THREAD_SYNC_NONE)
    rec.call("of the module", lambda: b.DRAM_SEG is b.nixl_mem_t.DRAM_SEG)
    rec.call("of __members__", lambda: b.DRAM_SEG is b.nixl_mem_t.__members__["DRAM_SEG"])
    rec.call("of the API", lambda: [m.name for m in nixl.api.nixl_thread_sync_t])


def case_attributes(nixl: Any, rec: Any) -> None:
    for member in _members(nixl):
        kind = type(member)
        rec.call(f"{member}, new", setattr, member, "extra", 1)
        rec.call("name", setattr, member, "name", "x")
        rec.call("value", setattr, member, "value", 1)
        rec.call("dict", lambda m=member: m.__dict__)
        rec.call("of the class", setattr, kind, "extra", 1)
        rec.call("seen", lambda m=member: m.extra)
        rec.call("and not", delattr, kind, "extra")


def case_copies(nixl: Any, rec: Any) -> None:
    for member in _members(nixl):
        rec.call(f"{member}, copied", copy.copy, member)
        rec.call("deeply", lambda m=member: copy.deepcopy(m) == m)
        for protocol in (2, 3, 4, 5):
            rec.call(
                f"pickled, {protocol}",
                lambda m=member, p=protocol: repr(pickle.loads(pickle.dumps(m, p))),
            )
        rec.call("state", lambda m=member: m.__getstate__())


def case_subclasses(nixl: Any, rec: Any) -> None:
    for name in KINDS:
        kind = getattr(nixl.bindings, name)

        class Mine(kind):  # type: ignore[misc, valid-type]
            pass

        rec.call(f"{name}, repr", lambda Mine=Mine: repr(Mine(0)))
        rec.call("an instance", lambda Mine=Mine, kind=kind: isinstance(Mine(0), kind))
        rec.call("equal", lambda Mine=Mine, kind=kind: (Mine(0) == kind(0), kind(0) == Mine(0)))
        rec.call("attribute", lambda Mine=Mine: setattr(Mine(0), "extra", 1))
    b = nixl.bindings

    class Memory(b.nixl_mem_t):  # type: ignore[misc, name-defined]
        pass

    rec.call("as an argument", lambda: b.nixlXferDList(Memory(0), [(1, 2, 3)]).getType())

"""Runs cases over one implementation of NIXL's Python interface, and writes down what calls did.

A case is a function ``case_…(nixl, rec)`` of a module ``cases_….py``: ``nixl`` has the modules,
``rec`` makes the record. The records of NIXL itself and of kvxfer's drop-in are compared line by
line, so a line has nothing of the text of an error, of addresses or of times.

    python nixl_record.py real|drop_in cases_module     one JSON object a case, on standard output
"""

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np


def wait_until(condition: Callable[[], Any], seconds: float = 5.0) -> Any:
    """The condition's value, once it is true or the time is over."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.002)
    return value


class Recorder:
    def __init__(self, nixl: Any) -> None:
        self._nixl = nixl
        self._bases: list[tuple[str, int, int]] = []
        self.lines: list[str] = []

    def buffer(self, name: str, size: int) -> np.ndarray:
        """Zeroed memory. Its addresses are written down as ``name+offset``."""
        made = np.zeros(size, dtype=np.uint8)
        self._bases.append((name, made.ctypes.data, size))
        return made

    def _number(self, value: int) -> str:
        for name, base, size in self._bases:
            if base <= value <= base + size:
                return f"{name}+{value - base}"
        return str(value)

    def show(self, value: Any) -> str:
        """A value with its type, as far as the interface promises it."""
        kind = type(value).__name__
        if kind in ("nixlXferDList", "nixlRegDList", "nixlRemoteDList"):
            rows = [self.show(value[i]) for i in range(value.descCount())]
            return f"{kind} {value.getType()} [{', '.join(rows)}]"
        if isinstance(value, dict):
            items = sorted(f"{self.show(k)}: {self.show(v)}" for k, v in value.items())
            return "{" + ", ".join(items) + "}"
        if isinstance(value, (list, tuple)):
            return f"{kind}({', '.join(map(self.show, value))})"
        if value is None or kind in ("bool", "str", "bytes", "type"):
            return repr(value)
        if kind == "int":
            return self._number(value)
        if hasattr(value, "__members__") or hasattr(type(value), "__members__"):
            return str(value)
        return f"a {kind}"

    def _outcome(self, call: Callable[..., Any], args: tuple, named: dict) -> tuple[Any, str]:
        try:
            value = call(*args, **named)
        except Exception as error:
            name = type(error).__name__
            where = (
                "nixl._bindings." if getattr(self._nixl.bindings, name, None) is type(error) else ""
            )
            return None, f"raises {where}{name}"
        return value, self.show(value)

    def call(self, label: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Writes down what the call returns or raises; returns it, or None."""
        value, outcome = self._outcome(call, args, named)
        self.lines.append(f"{label}: {outcome}")
        return value

    def either(self, label: str, allowed: set[str], call: Callable[..., Any], *args: Any) -> Any:
        """For what depends on timing: each of these outcomes counts as the same."""
        value, outcome = self._outcome(call, args, {})
        same = f"one of {sorted(allowed)}"
        self.lines.append(f"{label}: {same if outcome in allowed else outcome}")
        return value

    def differs(
        self, label: str, real: str, ours: str, call: Callable[..., Any], *args: Any
    ) -> Any:
        """For a difference on purpose: what NIXL does, and what the drop-in does."""
        value, outcome = self._outcome(call, args, {})
        expected = ours if self._nixl.is_drop_in else real
        same = f"NIXL: {real}; drop-in: {ours}"
        self.lines.append(f"{label}: {same if outcome == expected else outcome}")
        return value

    def check(self, label: str, holds: Any) -> None:
        """What has to be true of both."""
        self.lines.append(f"{label}: {'holds' if holds else 'DOES NOT HOLD'}")


class Pair:
    """Agents ``a`` and ``b``, each with 64 KiB registered, that know each other."""

    SIZE = 1 << 16

    def __init__(self, nixl: Any, rec: Recorder, suffix: str = "", **config: Any) -> None:
        make = nixl.api.nixl_agent
        self.nixl = nixl
        self.a_name, self.b_name = f"a{suffix}", f"b{suffix}"
        self.a = make(self.a_name, nixl.api.nixl_agent_config(**config))
        self.b = make(self.b_name, nixl.api.nixl_agent_config(**config))
        self.a_memory = rec.buffer(self.a_name, self.SIZE)
        self.b_memory = rec.buffer(self.b_name, self.SIZE)
        self.a_memory[:] = np.arange(self.SIZE) % 251
        self.pa, self.pb = self.a_memory.ctypes.data, self.b_memory.ctypes.data
        self.a.register_memory([(self.pa, self.SIZE, 0, "")], "DRAM")
        self.b.register_memory([(self.pb, self.SIZE, 0, "")], "DRAM")
        self.a.add_remote_agent(self.b.get_agent_metadata())
        self.b.add_remote_agent(self.a.get_agent_metadata())

    def at_a(self, *ranges: tuple[int, int]) -> Any:
        """A transfer list of (offset, bytes) in a's memory."""
        return descs(self.nixl, [(self.pa + at, size, 0) for at, size in ranges])

    def at_b(self, *ranges: tuple[int, int]) -> Any:
        return descs(self.nixl, [(self.pb + at, size, 0) for at, size in ranges])


def descs(nixl: Any, rows: list, mem: str = "DRAM_SEG") -> Any:
    return nixl.bindings.nixlXferDList(getattr(nixl.bindings, mem), rows)


def regs(nixl: Any, rows: list, mem: str = "DRAM_SEG") -> Any:
    rows = [(*row, "") if len(row) == 3 else row for row in rows]
    return nixl.bindings.nixlRegDList(getattr(nixl.bindings, mem), rows)


def run_to_end(agent: Any, handle: Any, message: Any = None, seconds: float = 10.0) -> str:
    """Posts it and polls it. "DONE", or "PROC" where it takes longer; raises what they raise."""
    state = agent.transfer(handle) if message is None else agent.transfer(handle, message)
    end = time.monotonic() + seconds
    while state == "PROC" and time.monotonic() < end:
        state = agent.check_xfer_state(handle)
    return state


def notifications(agent: Any, count: int, seconds: float = 5.0) -> dict[str, list[bytes]]:
    """At least as many, unless the time is over."""
    all_of_them: dict[str, list[bytes]] = {}

    def enough() -> bool:
        for sender, messages in agent.get_new_notifs().items():
            all_of_them.setdefault(sender, []).extend(messages)
        return sum(map(len, all_of_them.values())) >= count

    wait_until(enough, seconds)
    return all_of_them


def load(implementation: str) -> Any:
    """The modules of whichever ``nixl`` comes first on the path."""
    api = importlib.import_module("nixl._api")
    bindings = importlib.import_module("nixl._bindings")
    from_kvxfer = bindings.nixlAgent.__module__.startswith("kvxfer.")
    if from_kvxfer != (implementation == "drop_in"):
        raise SystemExit(f"nixl is of {bindings.__file__}, which is not {implementation}")
    return SimpleNamespace(api=api, bindings=bindings, is_drop_in=from_kvxfer)


def main(implementation: str, module: str) -> None:
    nixl = load(implementation)
    cases = importlib.import_module(module)
    for name in [name for name in vars(cases) if name.startswith("case_")]:
        rec = Recorder(nixl)
        failure = ""
        try:
            getattr(cases, name)(nixl, rec)
        except BaseException:
            failure = traceback.format_exc()
        print("\n" + json.dumps({"case": name, "lines": rec.lines, "failure": failure}), flush=True)
    if implementation == "real":
        os._exit(0)  # NIXL crashes in the destructors of agents at exit


if __name__ == "__main__":
    main(*sys.argv[1:])

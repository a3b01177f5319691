"""Registering, deregistering, querying memory; memory views.

Left out: registering an address where nothing is mapped, which NIXL over UCX takes.
"""

from typing import Any

from nixl_record import Pair, descs, regs


def _agent(nixl: Any, rec: Any) -> tuple[Any, int]:
    memory = rec.buffer("m", 1 << 16)
    agent = nixl.api.nixl_agent("a")
    agent.test_memory = memory  # as long as the agent
    return agent, memory.ctypes.data


def case_register(nixl: Any, rec: Any) -> None:
    agent, p = _agent(nixl, rec)
    row = [(p, 4096, 0, "")]
    listed = rec.call("tuples", agent.register_memory, row, "DRAM")
    rec.call("a list", agent.register_memory, listed)
    rec.call(
        "by name", lambda: agent.register_memory(reg_list=row, mem_type="DRAM", backends=["UCX"])
    )
    rec.call("overlapping", agent.register_memory, [(p + 100, 4096, 0, "")], "DRAM")
    rec.call("several", agent.register_memory, [(p, 10, 0, ""), (p + 10, 10, 0, "")], "DRAM")
    rec.call("with meta", agent.register_memory, [(p, 4096, 0, "meta")], "DRAM")
    rec.call("another device", agent.register_memory, [(p, 4096, 5, "")], "DRAM")
    rec.call("no bytes", agent.register_memory, [(p, 0, 0, "")], "DRAM")
    rec.call("raw", agent.agent.registerMem, listed)
    rec.call("raw, with a backend", agent.agent.registerMem, listed, [agent.backends["UCX"]])


def case_register_refused(nixl: Any, rec: Any) -> None:
    agent, p = _agent(nixl, rec)
    row = [(p, 4096, 0, "")]
    rec.call("no mem_type", agent.register_memory, row)
    rec.call("unknown backend", agent.register_memory, row, "DRAM", ["NOPE"])
    rec.call("null", agent.register_memory, [(0, 4096, 0, "")], "DRAM")
    rec.call("an empty list", agent.register_memory, regs(nixl, []))
    rec.call("a transfer list", agent.register_memory, descs(nixl, [(p, 16, 0)]))
    rec.call("VRAM without a GPU", agent.register_memory, row, "VRAM")
    for mem in ("FILE", "BLOCK", "OBJ"):
        rec.call(mem, agent.register_memory, [(0, 4096, 3, "")], mem)
        rec.call(f"{mem}, by a backend", agent.register_memory, [(0, 4096, 3, "")], mem, ["UCX"])
    rec.call("raw, tuples", agent.agent.registerMem, row)


def case_deregister(nixl: Any, rec: Any) -> None:
    agent, p = _agent(nixl, rec)
    listed = agent.register_memory([(p, 4096, 0, "")], "DRAM")
    rec.call("once", agent.deregister_memory, listed)
    rec.call("twice", agent.deregister_memory, listed)
    agent.register_memory(listed)
    agent.register_memory(listed)
    rec.call("one of two", agent.deregister_memory, listed)
    rec.call("the other", agent.deregister_memory, listed)
    rec.call("a third", agent.deregister_memory, listed)
    agent.register_memory(listed)
    rec.call("by other meta", agent.deregister_memory, regs(nixl, [(p, 4096, 0, "other")]))
    agent.register_memory(listed)
    rec.call("by name", lambda: agent.deregister_memory(dereg_list=listed, backends=["UCX"]))
    agent.register_memory(listed)
    rec.call("raw", agent.agent.deregisterMem, listed)


def case_deregister_refused(nixl: Any, rec: Any) -> None:
    agent, p = _agent(nixl, rec)
    rec.call("before anything was", agent.deregister_memory, regs(nixl, [(p, 16, 0)]))
    rec.call("nothing, before anything was", agent.deregister_memory, regs(nixl, []))
    listed = agent.register_memory([(p, 4096, 0, "")], "DRAM")
    rec.call("nothing", agent.deregister_memory, regs(nixl, []))
    rec.call("unknown", agent.deregister_memory, regs(nixl, [(p + 1, 4096, 0)]))
    rec.call("a part", agent.deregister_memory, regs(nixl, [(p, 16, 0)]))
    rec.call("another device", agent.deregister_memory, regs(nixl, [(p, 4096, 1)]))
    rec.call("VRAM", agent.deregister_memory, regs(nixl, [(p, 4096, 0)], "VRAM_SEG"))
    rec.call("one known, one not", agent.deregister_memory, regs(nixl, [(p, 4096, 0), (p, 16, 0)]))
    rec.call("tuples", agent.deregister_memory, [(p, 4096, 0, "")])
    rec.call("None", agent.deregister_memory, None)
    rec.call("unknown backend", agent.deregister_memory, listed, ["NOPE"])
    rec.call("still registered", agent.deregister_memory, listed)


def case_query(nixl: Any, rec: Any) -> None:
    agent, p = _agent(nixl, rec)
    row = [(p, 4096, 0, "")]
    rec.call("memory", agent.query_memory, row, "UCX", "DRAM")
    rec.call("by name", lambda: agent.query_memory(reg_list=row, backend="UCX", mem_type="DRAM"))
    rec.call("unknown backend", agent.query_memory, row, "NOPE", "DRAM")
    rec.call("no mem_type", agent.query_memory, row, "UCX")


def case_memory_views(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    agent, b = pair.a, nixl.bindings

    def remote(rows: list) -> Any:
        return agent.get_remote_descs(rows, "DRAM")

    here, there = pair.at_a((0, 64)), remote([(pair.pb, 64, 0, "b")])
    rec.call("here", agent.prep_mem_view, here)
    rec.call("there", agent.prep_mem_view, there)
    rec.call("backends", lambda: agent.prep_mem_view(here, backends=["UCX"]))
    rec.call("unknown backend", lambda: agent.prep_mem_view(here, backends=["NOPE"]))
    rec.call("backends by position", lambda: agent.prep_mem_view(here, ["UCX"]))
    rec.call("not registered", agent.prep_mem_view, descs(nixl, [(64, 64, 0)]))
    rec.call("unknown agent", agent.prep_mem_view, remote([(pair.pb, 64, 0, "zz")]))
    rec.call("VRAM", agent.prep_mem_view, descs(nixl, [(pair.pa, 64, 0)], "VRAM_SEG"))
    rec.call("nothing", agent.prep_mem_view, b.nixlXferDList(b.DRAM_SEG))
    rec.call("tuples", agent.prep_mem_view, [(pair.pa, 64, 0)])
    rec.call("release an unknown one", agent.release_mem_view, 1234)
    rec.call("release None", agent.release_mem_view, None)

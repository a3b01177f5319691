"""initialize_xfer, transfer, check_xfer_state, telemetry, cost, release, within one process.

Left out: a length that wraps around the address space, which crashes NIXL (drop_in_test.py has what
the drop-in does).
"""

from typing import Any

import numpy as np
from nixl_record import Pair, descs, notifications, regs, run_to_end, wait_until

ACTIVE = {"'DONE'", "'PROC'"}


def case_write(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    handle = rec.call(
        "initialize",
        pair.a.initialize_xfer,
        "WRITE",
        pair.at_a((0, 256), (512, 64)),
        pair.at_b((64, 256), (0, 64)),
        "b",
        b"done",
    )
    rec.check(
        "repr", repr(handle).startswith("nixl_xfer_handle(0x") and "released=False" in repr(handle)
    )
    rec.call("before it is posted", pair.a.check_xfer_state, handle)
    rec.either("post", ACTIVE, pair.a.transfer, handle)
    rec.call("in the end", wait_until, lambda: pair.a.check_xfer_state(handle) == "DONE")
    rec.call("later", pair.a.check_xfer_state, handle)
    rec.check(
        "it was written",
        (pair.b_memory[64:320] == pair.a_memory[:256]).all()
        and (pair.b_memory[:64] == pair.a_memory[512:576]).all(),
    )
    rec.call("told", notifications, pair.b, 1)
    rec.call("backend", pair.a.query_xfer_backend, handle)
    rec.call("release", pair.a.release_xfer_handle, handle)
    rec.call("again", pair.a.release_xfer_handle, handle)
    rec.check("repr", "released=True" in repr(handle))


def case_read(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    pair.b_memory[:] = 77
    handle = rec.call(
        "initialize",
        lambda: pair.a.initialize_xfer(
            operation="READ",
            local_descs=pair.at_a((4096, 256)),
            remote_descs=pair.at_b((0, 256)),
            remote_agent="b",
            notif_msg="read",
            backends=["UCX"],
        ),
    )
    rec.call("state", run_to_end, pair.a, handle)
    rec.check("it was read", (pair.a_memory[4096:4352] == 77).all())
    rec.check("and no more", pair.a_memory[4352] == 4352 % 251)
    rec.call("told", notifications, pair.b, 1)


def case_arguments(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    a, b, beyond = pair.at_a, pair.at_b, pair.SIZE - 6
    for label, arguments in {
        "unknown operation": ("COPY", a((0, 16)), b((0, 16)), "b"),
        "operation in small letters": ("write", a((0, 16)), b((0, 16)), "b"),
        "operation of the enumeration": (nixl.bindings.NIXL_WRITE, a((0, 16)), b((0, 16)), "b"),
        "unknown agent": ("WRITE", a((0, 16)), b((0, 16)), "zz"),
        "agent by bytes": ("WRITE", a((0, 16)), b((0, 16)), b"b"),
        "no agent": ("WRITE", a((0, 16)), b((0, 16)), ""),
        "None as agent": ("WRITE", a((0, 16)), b((0, 16)), None),
        "unequal lengths": ("WRITE", a((0, 16)), b((0, 17)), "b"),
        "unequal lengths, unknown agent": ("WRITE", a((0, 16)), b((0, 17)), "zz"),
        "not as many": ("WRITE", a((0, 16), (64, 16)), b((0, 16)), "b"),
        "nothing": ("WRITE", a(), b(), "b"),
        "not registered here": ("WRITE", descs(nixl, [(64, 16, 0)]), b((0, 16)), "b"),
        "not registered there": ("WRITE", a((0, 16)), descs(nixl, [(64, 16, 0)]), "b"),
        "beyond the end here": ("WRITE", a((beyond, 16)), b((0, 16)), "b"),
        "beyond the end there": ("WRITE", a((0, 16)), b((beyond, 16)), "b"),
        "another device": ("WRITE", descs(nixl, [(pair.pa, 16, 1)]), b((0, 16)), "b"),
        "VRAM here": ("WRITE", descs(nixl, [(pair.pa, 16, 0)], "VRAM_SEG"), b((0, 16)), "b"),
        "VRAM there": ("WRITE", a((0, 16)), descs(nixl, [(pair.pb, 16, 0)], "VRAM_SEG"), "b"),
        "FILE there": ("WRITE", a((0, 16)), descs(nixl, [(pair.pb, 16, 0)], "FILE_SEG"), "b"),
        "tuples": ("WRITE", [(pair.pa, 16, 0)], [(pair.pb, 16, 0)], "b"),
        "registration lists": ("WRITE", regs(nixl, [(pair.pa, 16, 0)]), b((0, 16)), "b"),
        "None": ("WRITE", None, b((0, 16)), "b"),
        "backend": ("WRITE", a((0, 16)), b((0, 16)), "b", b"", ["UCX"]),
        "unknown backend": ("WRITE", a((0, 16)), b((0, 16)), "b", b"", ["NOPE"]),
        "None as message": ("WRITE", a((0, 16)), b((0, 16)), "b", None),
        "a number as message": ("WRITE", a((0, 16)), b((0, 16)), "b", 3),
        "no bytes": ("WRITE", a((0, 0)), b((0, 0)), "b"),
        "no bytes among others": ("WRITE", a((0, 0), (8, 8)), b((0, 0), (8, 8)), "b"),
    }.items():
        handle = rec.call(label, pair.a.initialize_xfer, *arguments)
        if handle is not None:
            rec.call(f"{label}: state", run_to_end, pair.a, handle)


def case_messages(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)

    def make(*message: Any) -> Any:
        return pair.a.initialize_xfer(
            "WRITE", pair.at_a((0, 64)), pair.at_b((0, 64)), "b", *message
        )

    def posted(label: str, handle: Any, message: Any = None, count: int = 1) -> None:
        rec.call(f"{label}: state", run_to_end, pair.a, handle, message)
        rec.call(f"{label}: told", notifications, pair.b, count, 5.0 if count else 0.05)

    handle = make(b"first")
    posted("as made", handle)
    posted("again", handle)
    posted("another", handle, b"second")
    posted("which stays", handle)
    posted("a string", handle, "dritte \u00dc")
    posted("an empty one changes nothing", handle, b"")
    posted("bytearray", handle, bytearray(b"fourth"))
    rec.call("a number", pair.a.transfer, handle, 3)
    rec.call("None", pair.a.transfer, handle, None)
    silent = make()
    posted("none", silent, None, 0)
    posted("one later", silent, b"late")
    posted("which stays", silent)
    posted("nul bytes", make(b"a\x00b"))
    posted("64 KiB", make(b"x" * 65536))
    posted("more than 64 KiB", make(b"y" * 200_000))
    rec.call(
        "by name", lambda: pair.a.transfer(handle=silent, notif_msg=b"named") in ("DONE", "PROC")
    )
    rec.call("in the end", wait_until, lambda: pair.a.check_xfer_state(silent) == "DONE")
    rec.call("told", notifications, pair.b, 1)


def case_telemetry(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec, capture_telemetry=True)
    handle = pair.a.initialize_xfer(
        "WRITE", pair.at_a((0, 256), (256, 64)), pair.at_b((0, 256), (256, 64)), "b"
    )
    rec.call("before it is posted", pair.a.get_xfer_telemetry, handle)
    run_to_end(pair.a, handle)
    told = rec.call("after", pair.a.get_xfer_telemetry, handle)
    fields = ("startTime", "postDuration", "xferDuration", "totalBytes", "descCount")
    rec.call("types", lambda: [type(getattr(told, name)) for name in fields])
    rec.call("counts", lambda: (told.totalBytes, told.descCount))
    rec.check("times", 0 < told.postDuration <= told.xferDuration < 60e6 and told.startTime > 0)
    for name in fields:
        rec.call(f"set {name}", setattr, told, name, 1)
    run_to_end(pair.a, handle)
    rec.check("a later start", pair.a.get_xfer_telemetry(handle).startTime > told.startTime)
    empty = rec.call("by itself", nixl.bindings.nixlXferTelemetry)
    rec.call("zeros", lambda: [getattr(empty, name) for name in fields])
    rec.call("released", lambda: handle.release())


def case_no_telemetry(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    handle = pair.a.initialize_xfer("WRITE", pair.at_a((0, 64)), pair.at_b((0, 64)), "b")
    rec.call("before", pair.a.get_xfer_telemetry, handle)
    run_to_end(pair.a, handle)
    rec.call("after", pair.a.get_xfer_telemetry, handle)


def case_cost_and_backend(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    handle = pair.a.initialize_xfer("WRITE", pair.at_a((0, 64)), pair.at_b((0, 64)), "b")
    cost = pair.a.estimate_xfer_cost(handle)
    rec.call("types", lambda: [type(part) for part in cost])
    rec.check("not negative", cost[0] >= 0 and cost[1] >= 0)
    rec.call("method", lambda: cost[2])
    rec.call("by name", lambda: type(pair.a.estimate_xfer_cost(req_handle=handle)))
    rec.call("raw", lambda: pair.a.agent.estimateXferCost(handle._handle)[2])
    rec.call("backend", pair.a.query_xfer_backend, handle)
    rec.check(
        "raw backend", pair.a.agent.queryXferBackend(handle._handle) == pair.a.backends["UCX"]
    )
    pair.a.remove_remote_agent("b")
    rec.call("cost without the agent", pair.a.estimate_xfer_cost, handle)


def case_none_for_a_handle(nixl: Any, rec: Any) -> None:
    agent = nixl.api.nixl_agent("a")
    for name in (
        "transfer",
        "check_xfer_state",
        "get_xfer_telemetry",
        "estimate_xfer_cost",
        "query_xfer_backend",
        "release_xfer_handle",
    ):
        rec.call(name, getattr(agent, name), None)


def case_to_oneself(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec, capture_telemetry=True)
    write = rec.call(
        "write",
        pair.a.initialize_xfer,
        "WRITE",
        pair.at_a((0, 256)),
        pair.at_a((8192, 256)),
        "a",
        b"to myself",
    )
    rec.call("state", run_to_end, pair.a, write)
    rec.check("copied", (pair.a_memory[8192:8448] == pair.a_memory[:256]).all())
    rec.call("told", notifications, pair.a, 1)
    read = rec.call(
        "read", pair.a.initialize_xfer, "READ", pair.at_a((12288, 256)), pair.at_a((1, 256)), "a"
    )
    rec.call("before it is posted", pair.a.check_xfer_state, read)
    rec.call("state", run_to_end, pair.a, read, b"read")
    rec.check("copied", (pair.a_memory[12288:12544] == pair.a_memory[1:257]).all())
    rec.call("told", notifications, pair.a, 1)
    rec.call("bytes", lambda: pair.a.get_xfer_telemetry(read).totalBytes)
    rec.call("backend", pair.a.query_xfer_backend, read)
    rec.call(
        "not registered",
        pair.a.initialize_xfer,
        "WRITE",
        pair.at_a((0, 16)),
        pair.at_b((0, 16)),
        "a",
    )
    rec.call("release", pair.a.release_xfer_handle, read)


def case_repost(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    handle = pair.a.initialize_xfer("WRITE", pair.at_a((0, 64)), pair.at_b((0, 64)), "b", b"again")
    for value in (1, 2, 3):
        pair.a_memory[:64] = value
        rec.call("state", run_to_end, pair.a, handle)
        rec.check(f"{value} arrived", (pair.b_memory[:64] == value).all())
    rec.call("told", notifications, pair.b, 3)


def case_repost_under_way(nixl: Any, rec: Any) -> None:
    agent, other = nixl.api.nixl_agent("a"), nixl.api.nixl_agent("b")
    ours, theirs = np.ones(16 << 20, dtype=np.uint8), np.zeros(16 << 20, dtype=np.uint8)
    for who, memory in ((agent, ours), (other, theirs)):
        who.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    agent.add_remote_agent(other.get_agent_metadata())
    here, there = (descs(nixl, [(m.ctypes.data, m.nbytes, 0)]) for m in (ours, theirs))
    handle = agent.initialize_xfer("WRITE", here, there, "b")
    rec.either("post", ACTIVE, agent.transfer, handle)
    refused = "raises nixl._bindings.nixlRepostActiveError"
    rec.either("at once again", {refused, *ACTIVE}, agent.transfer, handle)
    rec.call("in the end", wait_until, lambda: agent.check_xfer_state(handle) == "DONE", 20)
    rec.check("all of it", theirs.all())
    rec.either("once more", ACTIVE, agent.transfer, handle)
    rec.call("release, maybe under way", agent.release_xfer_handle, handle)


def case_remote_removed(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    handle = pair.a.initialize_xfer("WRITE", pair.at_a((0, 64)), pair.at_b((0, 64)), "b")
    pair.a.remove_remote_agent("b")
    rec.call("post", pair.a.transfer, handle)
    rec.call("state", pair.a.check_xfer_state, handle)
    pair.a.add_remote_agent(pair.b.get_agent_metadata())
    rec.call("post, added again", pair.a.transfer, handle)
    rec.call("release", pair.a.release_xfer_handle, handle)
    fresh = pair.a.initialize_xfer("WRITE", pair.at_a((0, 64)), pair.at_b((0, 64)), "b")
    rec.call("a new one", run_to_end, pair.a, fresh)


def case_raw_status(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    raw, b = pair.a.agent, nixl.bindings
    request = raw.createXferReq(b.NIXL_WRITE, pair.at_a((0, 64)), pair.at_b((0, 64)), "b", b"raw")
    rec.call("handle", lambda: type(request))
    states = {"nixl_status_t.NIXL_SUCCESS", "nixl_status_t.NIXL_IN_PROG"}
    rec.either("post", states, raw.postXferReq, request)
    rec.call("in the end", wait_until, lambda: raw.getXferStatus(request) == b.NIXL_SUCCESS)
    rec.call("status", raw.getXferStatus, request)
    rec.call("release", raw.releaseXferReq, request)
    rec.call("told", notifications, pair.b, 1)
    rec.call("send", raw.genNotif, "b", b"x", [pair.a.backends["UCX"]])
    notifications(pair.b, 1)
    rec.call("collect", pair.b.agent.getNotifs, {"before": [b"1"]})
    rec.call(
        "operation by number", raw.createXferReq, 1, pair.at_a((0, 64)), pair.at_b((0, 64)), "b"
    )


def case_destinations_that_repeat(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    handle = rec.call(
        "the same twice",
        pair.a.initialize_xfer,
        "WRITE",
        pair.at_a((0, 16), (16, 16)),
        pair.at_b((0, 16), (0, 16)),
        "b",
    )
    rec.call("state", run_to_end, pair.a, handle)
    rec.check(
        "one of them", any((pair.b_memory[:16] == pair.a_memory[i : i + 16]).all() for i in (0, 16))
    )
    handle = rec.call(
        "overlapping",
        pair.a.initialize_xfer,
        "WRITE",
        pair.at_a((0, 16), (16, 16)),
        pair.at_b((0, 16), (8, 16)),
        "b",
    )
    rec.differs(
        "state", "'DONE'", "raises nixl._bindings.nixlInvalidParamError", run_to_end, pair.a, handle
    )

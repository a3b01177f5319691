"""Metadata: full, partial, damaged; which agents and which of their memory are known."""

from typing import Any

from nixl_record import Pair, descs, notifications, regs


def _owner(nixl: Any, rec: Any) -> tuple[Any, int]:
    """Agent b with two regions of 4 KiB, at +0 and +8192."""
    memory = rec.buffer("b", 1 << 14)
    owner = nixl.api.nixl_agent("b")
    owner.test_memory = memory
    p = memory.ctypes.data
    owner.register_memory([(p, 4096, 0, ""), (p + 8192, 4096, 0, "")], "DRAM")
    return owner, p


def case_add(nixl: Any, rec: Any) -> None:
    owner, p = _owner(nixl, rec)
    agent = nixl.api.nixl_agent("a")
    blob = (
        rec.call("metadata", lambda: type(owner.get_agent_metadata()))
        and owner.get_agent_metadata()
    )
    rec.call("unknown", agent.check_remote_metadata, "b")
    name = rec.call("add", agent.add_remote_agent, blob)
    rec.call("again", agent.add_remote_agent, blob)
    rec.call("by name", lambda: agent.add_remote_agent(metadata=bytearray(blob)))
    rec.call("known", agent.check_remote_metadata, "b")
    rec.call("known, by bytes", agent.check_remote_metadata, name)
    rec.call("one's own", owner.add_remote_agent, blob)
    rec.call("None", agent.add_remote_agent, None)
    rec.call("a number", agent.add_remote_agent, 3)


def case_damaged(nixl: Any, rec: Any) -> None:
    owner, _ = _owner(nixl, rec)
    blob = owner.get_agent_metadata()
    for label, data in {
        "empty": b"",
        "garbage": b"garbage" * 10,
        "a string": "hello",
        "zeros": bytes(500),
        "of the web": b"GET / HTTP/1.1\r\n\r\n",
        "half": blob[: len(blob) // 2],
        "10 bytes": blob[:10],
        "40 bytes": blob[:40],
        "more than all": blob + b"xxxx",
    }.items():
        # A fresh agent each time, for NIXL keeps half of what it refused.
        rec.call(label, nixl.api.nixl_agent("a").add_remote_agent, data)
    rec.differs(
        "one byte less",
        "raises nixl._bindings.nixlNotFoundError",
        "raises nixl._bindings.nixlMismatchError",
        nixl.api.nixl_agent("a").add_remote_agent,
        blob[:-1],
    )


def case_check_with_descriptors(nixl: Any, rec: Any) -> None:
    owner, p = _owner(nixl, rec)
    agent = nixl.api.nixl_agent("a")
    agent.add_remote_agent(owner.get_agent_metadata())
    for label, rows in {
        "within": [(p, 16, 0)],
        "all": [(p, 4096, 0)],
        "beyond": [(p + 1, 4096, 0)],
        "another device": [(p, 16, 1)],
        "two": [(p, 16, 0), (p + 8192, 16, 0)],
        "two, one beyond": [(p, 16, 0), (p + 4096, 16, 0)],
        "two, descending": [(p + 8192, 16, 0), (p, 16, 0)],
        "between": [(p + 5000, 16, 0)],
        "no bytes": [(p, 0, 0)],
        "no bytes, at the end": [(p + 4096, 0, 0)],
        "no bytes, beyond": [(p + 4097, 0, 0)],
        "before": [(p - 1, 2, 0)],
        "none": [],
    }.items():
        rec.call(label, agent.check_remote_metadata, "b", descs(nixl, rows))
    rec.differs(
        "wrapping around",
        "True",
        "False",
        agent.check_remote_metadata,
        "b",
        descs(nixl, [(p, 2**64 - 1, 0)]),
    )
    rec.call("VRAM", agent.check_remote_metadata, "b", descs(nixl, [(p, 16, 0)], "VRAM_SEG"))
    rec.call("tuples", agent.check_remote_metadata, "b", [(p, 16, 0)])
    rec.call(
        "by name", lambda: agent.check_remote_metadata(agent="b", descs=descs(nixl, [(p, 16, 0)]))
    )


def case_oneself(nixl: Any, rec: Any) -> None:
    memory = rec.buffer("m", 4096)
    agent = nixl.api.nixl_agent("a")
    row = (memory.ctypes.data, 4096, 0)
    rec.call("before registering", agent.check_remote_metadata, "a")
    listed = agent.register_memory([(*row, "")], "DRAM")
    rec.call("after", agent.check_remote_metadata, "a")
    rec.call("with descriptors", agent.check_remote_metadata, "a", descs(nixl, [row]))
    agent.deregister_memory(listed)
    rec.call("after deregistering", agent.check_remote_metadata, "a")
    rec.call("remove", agent.remove_remote_agent, "a")
    rec.call("raw remove", agent.agent.invalidateRemoteMD, "a")
    rec.call("connect", agent.make_connection, "a")


def case_remove(nixl: Any, rec: Any) -> None:
    owner, p = _owner(nixl, rec)
    agent = nixl.api.nixl_agent("a")
    rec.call("unknown", agent.remove_remote_agent, "b")
    rec.call("raw, unknown", agent.agent.invalidateRemoteMD, "b")
    agent.add_remote_agent(owner.get_agent_metadata())
    rec.call("known", agent.remove_remote_agent, "b")
    rec.call("check", agent.check_remote_metadata, "b")
    rec.call("again", agent.remove_remote_agent, b"b")
    rec.call("send", agent.send_notif, "b", b"x")
    rec.call("prepare", agent.prep_xfer_dlist, "b", [(p, 16, 0)], "DRAM")
    rec.call("connect", agent.make_connection, "b")
    rec.call("add again", agent.add_remote_agent, owner.get_agent_metadata())
    rec.call("send", agent.send_notif, "b", b"x")
    rec.call("it comes", notifications, owner, 1)
    rec.call("raw", agent.agent.invalidateRemoteMD, "b")


def case_connect(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    rec.call("known", pair.a.make_connection, "b")
    rec.call("again, by bytes", pair.a.make_connection, b"b")
    rec.call("by name", lambda: pair.a.make_connection(remote_agent="b", backends=["UCX"]))
    rec.call("unknown", pair.a.make_connection, "zz")
    rec.call("unknown backend", pair.a.make_connection, "b", ["NOPE"])
    rec.call("None", pair.a.make_connection, None)
    rec.call("raw", pair.a.agent.makeConnection, "b", [])
    rec.call("nobody is told", notifications, pair.b, 1, 0.1)


def case_partial(nixl: Any, rec: Any) -> None:
    owner, p = _owner(nixl, rec)
    first = regs(nixl, [(p, 4096, 0)])
    for label, arguments in {
        "registered": (first,),
        "with connection": (first, True),
        "by a backend": (first, True, ["UCX"]),
        "nothing": (regs(nixl, []),),
        "nothing, with connection": (regs(nixl, []), True),
        "not registered": (regs(nixl, [(1, 2, 0)]),),
        "a part": (regs(nixl, [(p, 16, 0)]),),
        "VRAM": (regs(nixl, [(1, 2, 0)], "VRAM_SEG"),),
        "FILE": (regs(nixl, [(1, 2, 0)], "FILE_SEG"),),
        "unknown backend": (first, True, ["NOPE"]),
        "a transfer list": (descs(nixl, []),),
    }.items():
        rec.call(
            label, lambda arguments=arguments: type(owner.get_partial_agent_metadata(*arguments))
        )
    rec.call(
        "by name",
        lambda: type(
            owner.get_partial_agent_metadata(descs=first, inc_conn_info=True, backends=[])
        ),
    )


def case_partial_is_partial(nixl: Any, rec: Any) -> None:
    owner, p = _owner(nixl, rec)
    agent = nixl.api.nixl_agent("a")
    mine = rec.buffer("a", 4096)
    agent.register_memory([(mine.ctypes.data, 4096, 0, "")], "DRAM")
    ours = descs(nixl, [(mine.ctypes.data, 16, 0)])
    first, second = descs(nixl, [(p, 16, 0)]), descs(nixl, [(p + 8192, 16, 0)])

    def look(label: str) -> None:
        rec.call(f"{label}: known", agent.check_remote_metadata, "b")
        rec.call(f"{label}: first", agent.check_remote_metadata, "b", first)
        rec.call(f"{label}: second", agent.check_remote_metadata, "b", second)
        rec.call(f"{label}: prepare second", agent.prep_xfer_dlist, "b", second)
        rec.call(f"{label}: write first", agent.initialize_xfer, "WRITE", ours, first, "b")
        rec.call(f"{label}: write second", agent.initialize_xfer, "WRITE", ours, second, "b")

    part = owner.get_partial_agent_metadata
    rec.call("without connection first", agent.add_remote_agent, part(regs(nixl, [(p, 4096, 0)])))
    look("nothing")
    rec.call("connection alone", agent.add_remote_agent, part(regs(nixl, []), True))
    look("connection")
    rec.call("the first", agent.add_remote_agent, part(regs(nixl, [(p, 4096, 0)])))
    look("one")
    rec.call("the second", agent.add_remote_agent, part(regs(nixl, [(p + 8192, 4096, 0)])))
    look("both")
    rec.call("all", agent.add_remote_agent, owner.get_agent_metadata())


def case_memory_registered_later(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    more = rec.buffer("more", 4096)
    row = (more.ctypes.data, 4096, 0)
    early = pair.b.get_agent_metadata()
    listed = pair.b.register_memory([(*row, "")], "DRAM")
    rec.call("before", pair.a.check_remote_metadata, "b", descs(nixl, [row]))
    rec.call("add", pair.a.add_remote_agent, pair.b.get_agent_metadata())
    rec.call("after", pair.a.check_remote_metadata, "b", descs(nixl, [row]))
    rec.call("an older one", pair.a.add_remote_agent, early)
    rec.call("still known", pair.a.check_remote_metadata, "b", descs(nixl, [row]))
    pair.b.deregister_memory(listed)
    rec.call("without it", pair.a.add_remote_agent, pair.b.get_agent_metadata())
    rec.call("still known", pair.a.check_remote_metadata, "b", descs(nixl, [row]))


def case_restarted(nixl: Any, rec: Any) -> None:
    agent = nixl.api.nixl_agent("a")
    first = nixl.api.nixl_agent("b")
    rec.call("add", agent.add_remote_agent, first.get_agent_metadata())
    second = nixl.api.nixl_agent("b")
    blob = second.get_agent_metadata()
    rec.call("another of the name", agent.add_remote_agent, blob)
    rec.call("remove", agent.remove_remote_agent, "b")
    rec.call("then", agent.add_remote_agent, blob)
    rec.call("send", agent.send_notif, "b", b"to the second")
    rec.call("second", notifications, second, 1)
    rec.call("first", notifications, first, 1, 0.05)

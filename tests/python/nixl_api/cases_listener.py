"""The listener thread: metadata by address, between agents on 127.0.0.1."""

import time
from typing import Any

from free_ports import free_port
from nixl_record import descs, regs, wait_until


def _agents(nixl: Any, rec: Any) -> tuple[Any, int, Any, int, Any]:
    """a and b listen, c does not; b has two regions of 4 KiB, at +0 and +8192."""
    config = nixl.api.nixl_agent_config
    ports = [free_port(), free_port()]
    a = nixl.api.nixl_agent("a", config(enable_listen_thread=True, listen_port=ports[0]))
    b = nixl.api.nixl_agent("b", config(True, True, ports[1]))
    memory = rec.buffer("b", 1 << 14)
    b.test_memory = memory
    p = memory.ctypes.data
    b.register_memory([(p, 4096, 0, ""), (p + 8192, 4096, 0, "")], "DRAM")
    return a, ports[0], b, p, nixl.api.nixl_agent("c")


def case_send_fetch_invalidate(nixl: Any, rec: Any) -> None:
    a, port, b, p, _ = _agents(nixl, rec)
    rec.call("send", b.send_local_metadata, "127.0.0.1", port)
    rec.call("a knows b", wait_until, lambda: a.check_remote_metadata("b"))
    rec.call("and its memory", a.check_remote_metadata, "b", descs(nixl, [(p, 16, 0)]))
    rec.call("b does not know a", b.check_remote_metadata, "a")
    rec.call("fetch", b.fetch_remote_metadata, "a", "127.0.0.1", port)
    rec.call("b knows a", wait_until, lambda: b.check_remote_metadata("a"))
    rec.call("invalidate", b.invalidate_local_metadata, "127.0.0.1", port)
    rec.call("a has forgotten b", wait_until, lambda: not a.check_remote_metadata("b"))
    rec.call("by name", lambda: b.send_local_metadata(ip_addr="127.0.0.1", port=port))
    rec.call("a knows b", wait_until, lambda: a.check_remote_metadata("b"))
    rec.call(
        "fetch by name",
        lambda: b.fetch_remote_metadata(remote_agent="a", ip_addr="127.0.0.1", port=port, label=""),
    )
    rec.call(
        "invalidate by name", lambda: b.invalidate_local_metadata(ip_addr="127.0.0.1", port=port)
    )
    rec.call("a has forgotten b", wait_until, lambda: not a.check_remote_metadata("b"))


def case_partial(nixl: Any, rec: Any) -> None:
    a, port, b, p, _ = _agents(nixl, rec)
    send, first = b.send_partial_agent_metadata, regs(nixl, [(p, 4096, 0)])
    rec.call("connection alone", send, regs(nixl, []), True, [], "127.0.0.1", port)
    rec.call("a knows b", wait_until, lambda: a.check_remote_metadata("b"))
    rec.call("no memory", a.check_remote_metadata, "b", descs(nixl, [(p, 16, 0)]))
    rec.call("a region", lambda: send(descs=first, ip_addr="127.0.0.1", port=port))
    rec.call(
        "it is known", wait_until, lambda: a.check_remote_metadata("b", descs(nixl, [(p, 16, 0)]))
    )
    rec.call("the other is not", a.check_remote_metadata, "b", descs(nixl, [(p + 8192, 16, 0)]))
    rec.call("not registered", send, regs(nixl, [(1, 2, 0)]), False, [], "127.0.0.1", port)
    rec.call("unknown backend", send, first, False, ["NOPE"], "127.0.0.1", port)


def case_without_a_listener(nixl: Any, rec: Any) -> None:
    a, port, _, _, c = _agents(nixl, rec)
    rec.call("send", c.send_local_metadata, "127.0.0.1", port)
    rec.call("a knows c", wait_until, lambda: a.check_remote_metadata("c"))
    rec.call("invalidate", c.invalidate_local_metadata, "127.0.0.1", port)
    rec.call("a has forgotten c", wait_until, lambda: not a.check_remote_metadata("c"))
    rec.call("partial", c.send_partial_agent_metadata, regs(nixl, []), True, [], "127.0.0.1", port)
    rec.call("a knows c", wait_until, lambda: a.check_remote_metadata("c"))
    rec.call("fetch", c.fetch_remote_metadata, "a", "127.0.0.1", port)


def case_nobody_there(nixl: Any, rec: Any) -> None:
    """Failures are for the log alone."""
    a, port, b, p, _ = _agents(nixl, rec)
    nobody = free_port()
    rec.call("send", b.send_local_metadata, "127.0.0.1", nobody)
    rec.call("fetch", b.fetch_remote_metadata, "a", "127.0.0.1", nobody)
    rec.call("invalidate", b.invalidate_local_metadata, "127.0.0.1", nobody)
    rec.call("a host name", b.send_local_metadata, "host.invalid", nobody)
    rec.call("a port beyond", b.send_local_metadata, "127.0.0.1", 99999)
    rec.call("a string as port", b.send_local_metadata, "127.0.0.1", "x")
    rec.call("a number as address", b.send_local_metadata, 127, nobody)
    rec.call("then", b.send_local_metadata, "127.0.0.1", port)
    rec.call("a knows b", wait_until, lambda: a.check_remote_metadata("b"))


def case_oneself(nixl: Any, rec: Any) -> None:
    a, port, b, _, _ = _agents(nixl, rec)
    rec.call("fetch", a.fetch_remote_metadata, "a", "127.0.0.1", port)
    rec.call("send", a.send_local_metadata, "127.0.0.1", port)
    time.sleep(0.3)
    rec.call("still there", b.send_local_metadata, "127.0.0.1", port)
    rec.call("a knows b", wait_until, lambda: a.check_remote_metadata("b"))


def case_no_central_server(nixl: Any, rec: Any) -> None:
    _, _, b, p, c = _agents(nixl, rec)
    first = regs(nixl, [(p, 4096, 0)])
    for who, agent in (("b", b), ("c", c)):
        rec.call(f"{who} sends", agent.send_local_metadata)
        rec.call(f"{who} fetches", agent.fetch_remote_metadata, "a")
        rec.call(
            f"{who} fetches by label",
            lambda agent=agent: agent.fetch_remote_metadata("a", label="x"),
        )
        rec.call(f"{who} invalidates", agent.invalidate_local_metadata)
    rec.call("partial", b.send_partial_agent_metadata, first)
    rec.call("partial by label", lambda: b.send_partial_agent_metadata(first, label="x"))


def case_ports(nixl: Any, rec: Any) -> None:
    _, port, *_ = kept = _agents(nixl, rec)

    def listen(at: Any) -> str:
        config = nixl.api.nixl_agent_config(enable_listen_thread=True, listen_port=at)
        return nixl.api.nixl_agent("d", config).name

    for at in (0, -1, 70000, "x"):
        rec.call(f"port {at!r}", listen, at)
    rec.call("taken", listen, port)
    del kept

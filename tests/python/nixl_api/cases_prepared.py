"""prep_xfer_dlist and make_prepped_xfer."""

from typing import Any

import numpy as np
from nixl_record import Pair, descs, regs, run_to_end


def _rows(p: int, count: int, size: int = 64, stride: int = 0) -> list[tuple[int, int, int]]:
    return [(p + i * (stride or size), size, 0) for i in range(count)]


def case_prepare(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    prepare, pa, pb = pair.a.prep_xfer_dlist, pair.pa, pair.pb
    for label, arguments in {
        "local": ("", _rows(pa, 4), "DRAM"),
        "local, by word": ("NIXL_INIT_AGENT", _rows(pa, 4), "DRAM"),
        "local, by bytes": (b"", _rows(pa, 4), "DRAM"),
        "oneself": ("a", _rows(pa, 4), "DRAM"),
        "remote": ("b", _rows(pb, 4), "DRAM"),
        "remote, by bytes": (b"b", _rows(pb, 4), "DRAM"),
        "unknown": ("zz", _rows(pb, 4), "DRAM"),
        "None": (None, _rows(pb, 4), "DRAM"),
        "the word by bytes": (b"NIXL_INIT_AGENT", _rows(pa, 4), "DRAM"),
        "no mem_type": ("", _rows(pa, 4)),
        "unknown mem_type": ("", _rows(pa, 4), "X"),
        "not registered": ("", _rows(64, 4), "DRAM"),
        "one not registered": ("", _rows(pa, 4) + _rows(64, 1), "DRAM"),
        "not registered there": ("b", _rows(64, 4), "DRAM"),
        "beyond the end": ("b", [(pb + pair.SIZE - 8, 16, 0)], "DRAM"),
        "another device": ("", [(pa, 16, 1)], "DRAM"),
        "nothing": ("", descs(nixl, [])),
        "VRAM": ("", _rows(pa, 4), "VRAM"),
        "FILE": ("", _rows(pa, 4), "FILE"),
        "an array": ("", np.array(_rows(pa, 4), dtype=np.uint64), "DRAM"),
        "backends": ("", _rows(pa, 4), "DRAM", ["UCX"]),
        "unknown backend": ("", _rows(pa, 4), "DRAM", ["NOPE"]),
        "a registration list": ("", regs(nixl, _rows(pa, 1))),
    }.items():
        rec.call(label, prepare, *arguments)
    rec.call(
        "by name",
        lambda: prepare(agent_name="", xfer_list=_rows(pa, 4), mem_type="DRAM", backends=[]),
    )
    rec.call("raw", lambda: type(pair.a.agent.prepXferDlist(pair.at_a((0, 16)))))


def case_prepare_between_regions(nixl: Any, rec: Any) -> None:
    agent = nixl.api.nixl_agent("a")
    memory = rec.buffer("m", 8192)
    p = memory.ctypes.data
    agent.register_memory([(p, 4096, 0, ""), (p + 4096, 4096, 0, "")], "DRAM")
    rec.call("across two", agent.prep_xfer_dlist, "", [(p + 4000, 200, 0)], "DRAM")
    agent.register_memory([(p + 3000, 3000, 0, "")], "DRAM")
    rec.call("within a third", agent.prep_xfer_dlist, "", [(p + 4000, 200, 0)], "DRAM")


def case_strided(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    prepare, p = pair.a.prep_xfer_dlist, pair.pa
    ones = np.ones((4, 5), dtype=np.uint64)
    for label, row in {
        "dense": (p, 64, 0, 64, 1024),
        "one too many": (p, 64, 0, 64, 1025),
        "spaced": (p, 64, 0, 128, 8),
        "up to the end": (p, 64, 0, pair.SIZE - 64, 2),
        "beyond": (p, 64, 0, 1 << 14, 5),
        "none": (p, 64, 0, 128, 0),
        "stride 0": (p, 64, 0, 0, 3),
        "overlapping": (p, 64, 0, 32, 3),
        "one, stride 0": (p, 64, 0, 0, 1),
        "no bytes": (p, 0, 0, 64, 3),
        "stride 2^63": (p, 64, 0, 2**63, 2),
        "one, stride 2^63": (p, 64, 0, 2**63, 1),
        "2^33 of them": (p, 64, 0, 64, 2**33),
        "another device": (p, 64, 1, 64, 1),
        "not registered": (64, 64, 0, 64, 1),
    }.items():
        rec.call(label, prepare, "", np.array([row], dtype=np.uint64), "DRAM")
    good = np.array([[p, 64, 0, 128, 8]], dtype=np.int64)
    rec.call("int64", prepare, "NIXL_INIT_AGENT", good, "DRAM")
    rec.call("remote", prepare, "b", np.array([[pair.pb, 64, 0, 128, 8]], dtype=np.int64), "DRAM")
    rec.call("unknown agent", prepare, "zz", good, "DRAM")
    rec.call("no mem_type", prepare, "", good)
    rec.call("unknown mem_type", prepare, "", good, "X")
    rec.call("float64", prepare, "", good.astype(float), "DRAM")
    rec.call("int32", prepare, "", ones.astype(np.int32), "DRAM")
    rec.call("every second row", prepare, "", ones[::2], "DRAM")
    rec.call("column order", prepare, "", np.asfortranarray(ones), "DRAM")
    rec.call("no rows", prepare, "", ones[:0], "DRAM")
    rec.call("tuples of five", prepare, "", [(p, 64, 0, 128, 8)], "DRAM")
    rec.differs(
        "more than an address space",
        "a nixl_prepped_dlist_handle",
        "raises nixl._bindings.nixlNotFoundError",
        prepare,
        "",
        np.array([[p, 64, 0, 64, 2**60 + 1]], dtype=np.uint64),
        "DRAM",
    )


class _Maker:
    """16 blocks of 64 bytes prepared on both sides; makes transfers, and records what they did."""

    def __init__(self, nixl: Any, rec: Any) -> None:
        self.pair = Pair(nixl, rec, capture_telemetry=True)
        self.rec, self.agent = rec, self.pair.a
        self.local = self.agent.prep_xfer_dlist("", _rows(self.pair.pa, 16), "DRAM")
        self.remote = self.agent.prep_xfer_dlist("b", _rows(self.pair.pb, 16), "DRAM")

    def make(self, label: str, local: Any, ours: Any, remote: Any, theirs: Any, *more: Any) -> None:
        self.pair.b_memory[:] = 0
        handle = self.rec.call(
            label, self.agent.make_prepped_xfer, "WRITE", local, ours, remote, theirs, *more
        )
        if handle is None:
            return
        self.rec.call(f"{label}: state", run_to_end, self.agent, handle)
        told = self.agent.get_xfer_telemetry(handle)
        blocks = self.pair.b_memory.reshape(-1, 64)
        self.rec.call(f"{label}: bytes, descriptors", lambda: (told.totalBytes, told.descCount))
        self.rec.call(f"{label}: blocks", lambda: np.flatnonzero(blocks.any(axis=1)).tolist())
        self.rec.call(f"{label}: sum", lambda: int(blocks.sum()))


def case_indices(nixl: Any, rec: Any) -> None:
    m = _Maker(nixl, rec)
    for dtype in ("int32", "uint32", "int64", "uint64", "int16"):
        ours, theirs = np.array([0, 1], dtype=dtype), np.array([1, 0], dtype=dtype)
        m.make(dtype, m.local, ours, m.remote, theirs)
    for dtype in ("float64", "bool"):
        rec.differs(
            dtype,
            "a nixl_xfer_handle",
            "raises RuntimeError",
            m.agent.make_prepped_xfer,
            "WRITE",
            m.local,
            np.array([0, 1], dtype=dtype),
            m.remote,
            [1, 0],
        )
    numbers = np.arange(8, dtype=np.int32)
    m.make("every second", m.local, numbers[::2], m.remote, numbers[::2])
    m.make("list", m.local, [0, 1, 5], m.remote, [2, 3, 4])
    m.make("range", m.local, range(3), m.remote, range(3))
    m.make("tuple", m.local, (0, 1), m.remote, (0, 1))
    m.make("set", m.local, {0}, m.remote, {0})
    m.make("list and array", m.local, [0, 1], m.remote, numbers[:2])
    m.make("numpy's integers", m.local, [np.int64(0)], m.remote, [np.int32(0)])
    m.make("booleans", m.local, [True], m.remote, [False])
    m.make("repeated source", m.local, [0, 0], m.remote, [0, 1])
    m.make("repeated destination", m.local, [2, 1], m.remote, [0, 0])


def case_wrong_indices(nixl: Any, rec: Any) -> None:
    m = _Maker(nixl, rec)
    for label, ours, theirs in (
        ("none", [], []),
        ("unequal", [0, 1], [0]),
        ("out of range", [16], [0]),
        ("out of range there", [0], [16]),
        ("negative", [-1], [0]),
        ("negative int32", np.array([-1], dtype=np.int32), [0]),
        ("negative int64", np.array([-1]), [0]),
        ("2^31", [2**31], [0]),
        ("float", [0.0], [0]),
        ("string", ["0"], [0]),
        ("None", None, [0]),
        ("number", 0, 0),
        ("text", "0", "0"),
        ("two dimensions", np.zeros((1, 2), dtype=np.int32), [0, 1]),
    ):
        rec.call(label, m.agent.make_prepped_xfer, "WRITE", m.local, ours, m.remote, theirs)


def case_merging(nixl: Any, rec: Any) -> None:
    m = _Maker(nixl, rec)
    pa, pb, all16 = m.pair.pa, m.pair.pb, list(range(16))
    m.make("all", m.local, all16, m.remote, all16)
    m.make("not asked for", m.local, all16, m.remote, all16, b"", [], True)
    m.make("with a gap", m.local, [0, 1, 3, 4], m.remote, [0, 1, 3, 4])
    m.make("descending", m.local, [3, 2, 1], m.remote, [3, 2, 1])
    m.make("elsewhere", m.local, [0, 1, 2], m.remote, [5, 6, 9])
    spaced = m.agent.prep_xfer_dlist("b", _rows(pb, 16, 64, 128), "DRAM")
    m.make("dense to spaced", m.local, all16, spaced, all16)
    strips = np.array([[pa, 64, 0, 128, 8], [pa + 4096, 64, 0, 64, 8]], dtype=np.uint64)
    ours = m.agent.prep_xfer_dlist("", strips, "DRAM")
    theirs = m.agent.prep_xfer_dlist("b", np.array([[pb, 64, 0, 64, 16]], dtype=np.int64), "DRAM")
    m.make("strips", ours, [0, 1, 8, 9, 10], theirs, [0, 1, 2, 3, 4])
    m.make("the last of strips", ours, [15], theirs, [15])
    rec.call("beyond strips", m.agent.make_prepped_xfer, "WRITE", ours, [16], theirs, [0])
    two_sizes = np.array([[pa, 64, 0, 64, 2], [pa, 32, 0, 64, 2]], dtype=np.uint64)
    mixed = m.agent.prep_xfer_dlist("", two_sizes, "DRAM")
    m.make("strips of two sizes", mixed, [0, 1], m.remote, [0, 1])
    rec.call("unequal", m.agent.make_prepped_xfer, "WRITE", mixed, [1, 2], m.remote, [0, 1])
    small = m.agent.prep_xfer_dlist("b", _rows(pb, 16, 32), "DRAM")
    rec.call("all unequal", m.agent.make_prepped_xfer, "WRITE", m.local, [0], small, [0])


def case_sides(nixl: Any, rec: Any) -> None:
    m = _Maker(nixl, rec)
    own = m.agent.prep_xfer_dlist("a", _rows(m.pair.pa + 32768, 16), "DRAM")
    make = m.agent.make_prepped_xfer
    rec.call("exchanged", make, "WRITE", m.remote, [0], m.local, [0])
    rec.call("both local", make, "WRITE", m.local, [0], m.local, [0])
    rec.call("oneself as local", make, "WRITE", own, [0], m.remote, [0])
    rec.call("numbers", make, "WRITE", m.local._handle, [0], m.remote, [0])
    rec.call("None", make, "WRITE", None, [0], m.remote, [0])
    rec.call("unknown operation", make, "COPY", m.local, [0], m.remote, [0])
    rec.call("unknown backend", make, "WRITE", m.local, [0], m.remote, [0], b"", ["NOPE"])
    rec.call("a number as message", make, "WRITE", m.local, [0], m.remote, [0], 3)
    handle = rec.call(
        "by name",
        lambda: make(
            operation="READ",
            local_xfer_side=m.local,
            local_indices=[3],
            remote_xfer_side=m.remote,
            remote_indices=[4],
            notif_msg=b"z",
            backends=["UCX"],
            skip_desc_merge=False,
        ),
    )
    rec.call("its state", run_to_end, m.agent, handle)
    rec.check("it was read", (m.pair.a_memory[192:256] == 0).all())
    handle = rec.call("to oneself", make, "WRITE", m.local, [1], own, [2])
    rec.call("its state", run_to_end, m.agent, handle)
    rec.check(
        "it was copied",
        (m.pair.a_memory[32768 + 128 : 32768 + 192] == m.pair.a_memory[64:128]).all(),
    )


def case_release(nixl: Any, rec: Any) -> None:
    m = _Maker(nixl, rec)
    rec.call("release", m.agent.release_dlist_handle, m.local)
    rec.call("twice", m.agent.release_dlist_handle, m.local)
    rec.call("by itself", m.remote.release)
    rec.check(
        "repr",
        "released=True" in repr(m.remote) and "nixl_prepped_dlist_handle(0x" in repr(m.remote),
    )
    rec.call("None", m.agent.release_dlist_handle, None)


def case_list_outlives_its_use(nixl: Any, rec: Any) -> None:
    """A transfer needs its prepared lists no longer."""
    m = _Maker(nixl, rec)
    handle = m.agent.make_prepped_xfer("WRITE", m.local, [0], m.remote, [0])
    m.local.release()
    m.remote.release()
    rec.call("state", run_to_end, m.agent, handle)
    rec.check("it was written", (m.pair.b_memory[:64] == m.pair.a_memory[:64]).all())


def case_remote_removed(nixl: Any, rec: Any) -> None:
    m = _Maker(nixl, rec)
    make = m.agent.make_prepped_xfer
    before = make("WRITE", m.local, [0], m.remote, [0])
    m.agent.remove_remote_agent("b")
    rec.call("make", make, "WRITE", m.local, [0], m.remote, [0])
    rec.call("post", m.agent.transfer, before)
    m.agent.add_remote_agent(m.pair.b.get_agent_metadata())
    rec.call("make, added again", make, "WRITE", m.local, [0], m.remote, [0])
    rec.call("post, added again", m.agent.transfer, before)
    rec.call("release", m.agent.release_xfer_handle, before)

"""get_reg_descs, get_xfer_descs and get_remote_descs: what is taken, is None, is refused."""

from typing import Any

import numpy as np


def _each(nixl: Any, rec: Any, inputs: Any) -> None:
    agent = nixl.api.nixl_agent("a", nixl.api.nixl_agent_config(backends=[]))
    for name, arity in (("get_reg_descs", 4), ("get_xfer_descs", 3), ("get_remote_descs", 4)):
        row = (64, 16, 0, "m")[:arity]
        for label, arguments in inputs(row).items():
            rec.call(f"{name}, {label}", getattr(agent, name), *arguments)


def case_tuples(nixl: Any, rec: Any) -> None:
    _each(
        nixl,
        rec,
        lambda row: {
            "one": ([row], "DRAM"),
            "two": ([row, row], "DRAM"),
            "no mem_type": ([row],),
            "one too short": ([row[:-1]], "DRAM"),
            "second too short": ([row, row[:-1]], "DRAM"),
            "lists": ([list(row)], "DRAM"),
            "a tuple of tuples": ((row, row), "DRAM"),
            "none": ([], "DRAM"),
        },
    )


def case_memory_types(nixl: Any, rec: Any) -> None:
    _each(
        nixl,
        rec,
        lambda row: (
            {
                name: ([row], name)
                for name in (
                    "DRAM",
                    "VRAM",
                    "FILE",
                    "BLOCK",
                    "OBJ",
                    "cpu",
                    "cuda",
                    "dram",
                    "DRAM_SEG",
                    "",
                )
            }
            | {"of the enumeration": ([row], nixl.bindings.DRAM_SEG)}
        ),
    )


def case_arrays(nixl: Any, rec: Any) -> None:
    ones = np.ones((4, 3), dtype=np.uint64)
    _each(
        nixl,
        rec,
        lambda row: {
            "uint64": (ones, "DRAM"),
            "int64": (ones.astype(np.int64), "DRAM"),
            "no mem_type": (ones,),
            "float64": (ones.astype(float), "DRAM"),
            "int32": (ones.astype(np.int32), "DRAM"),
            "four columns": (np.ones((2, 4), dtype=np.uint64), "DRAM"),
            "five columns": (np.ones((2, 5), dtype=np.uint64), "DRAM"),
            "one dimension": (np.ones(3, dtype=np.uint64), "DRAM"),
            "every second row": (ones[::2], "DRAM"),
            "column order": (np.asfortranarray(ones), "DRAM"),
            "no rows": (ones[:0], "DRAM"),
        },
    )


def case_lists_as_they_are(nixl: Any, rec: Any) -> None:
    b = nixl.bindings
    xfer = b.nixlXferDList(b.DRAM_SEG, [(1, 2, 3)])
    reg = b.nixlRegDList(b.DRAM_SEG, [(1, 2, 3, "")])
    _each(
        nixl,
        rec,
        lambda row: {
            "a transfer list": (xfer,),
            "a transfer list and a mem_type": (xfer, "VRAM"),
            "a registration list": (reg,),
            "a remote list": (b.nixlRemoteDList(b.DRAM_SEG, [(1, 2, 3, "a")]),),
        },
    )
    agent = nixl.api.nixl_agent("a", nixl.api.nixl_agent_config(backends=[]))
    rec.check(
        "the same object", agent.get_xfer_descs(xfer) is xfer and agent.get_reg_descs(reg) is reg
    )


def case_other_objects(nixl: Any, rec: Any) -> None:
    _each(
        nixl,
        rec,
        lambda row: {
            "a string": ("abc", "DRAM"),
            "bytes": (b"abc", "DRAM"),
            "a number": (3, "DRAM"),
            "None": (None, "DRAM"),
            "a dict": ({}, "DRAM"),
            "a set": ({1}, "DRAM"),
        },
    )
    agent = nixl.api.nixl_agent("a", nixl.api.nixl_agent_config(backends=[]))
    rec.call("by name", lambda: agent.get_xfer_descs(descs=[(1, 2, 3)], mem_type="DRAM"))

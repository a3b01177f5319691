"""Tensors as descriptors. In a file of their own, for torch takes seconds to import."""

from typing import Any

import torch
from nixl_record import Pair, run_to_end


def case_descriptors(nixl: Any, rec: Any) -> None:
    agent = nixl.api.nixl_agent("a", nixl.api.nixl_agent_config(backends=[]))
    memory = rec.buffer("t", 4096)
    flat = torch.from_numpy(memory)
    square = flat.view(torch.float32).view(32, 32)
    gaps = square[:, 1:]
    row = (64, 16, 0)
    for name in ("get_reg_descs", "get_xfer_descs", "get_remote_descs"):
        for label, arguments in {
            "one": (square,),
            "a mem_type is ignored": (square, "VRAM"),
            "a part": (square[4:8],),
            "with gaps": (gaps,),
            "a list": ([flat[:64], square[8:9]],),
            "a tuple": ((flat[:64], square[8:9]),),
            "a list with one with gaps": ([flat[:64], gaps],),
            "a list of several types": ([square[0], torch.from_numpy(memory[64:128])],),
            "no dimension": (square[0, 0],),
            "no elements": (flat[:0],),
            "a tensor, then a tuple": ([flat, row],),
            "a tuple, then a tensor": ([row, flat], "DRAM"),
            "transposed": (square.T,),
        }.items():
            rec.call(f"{name}, {label}", getattr(agent, name), *arguments)


def case_register(nixl: Any, rec: Any) -> None:
    memory = rec.buffer("m", 4096)
    agent = nixl.api.nixl_agent("a")
    tensor = torch.from_numpy(memory)
    listed = rec.call("one", agent.register_memory, tensor)
    rec.call("a list", agent.register_memory, [tensor[:64], tensor[64:128]])
    rec.call("with gaps", agent.register_memory, torch.zeros(4, 4)[:, 1:])
    rec.call("deregister", agent.deregister_memory, listed)
    rec.call("deregister a tensor", agent.deregister_memory, tensor)


def case_prepare(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    rec.call("registered", pair.a.prep_xfer_dlist, "", torch.from_numpy(pair.a_memory))
    rec.call("not registered", pair.a.prep_xfer_dlist, "", torch.zeros(4))
    rec.call("with gaps", pair.a.prep_xfer_dlist, "", torch.zeros(4, 4)[:, 1:])


def case_move(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    ours, theirs = torch.from_numpy(pair.a_memory), torch.from_numpy(pair.b_memory)
    here, there = (
        pair.a.get_xfer_descs([ours[:64], ours[128:256]]),
        pair.b.get_xfer_descs([theirs[:64], theirs[64:192]]),
    )
    handle = rec.call("initialize", pair.a.initialize_xfer, "WRITE", here, there, "b", b"moved")
    rec.call("state", run_to_end, pair.a, handle)
    rec.check("it was written", torch.equal(theirs[64:192], ours[128:256]))

"""Descriptor lists from what callers have: tuples, arrays, tensors."""

import logging
import sys
from typing import Any, TypeVar

import numpy as np

from .dlist import DescList, nixlRegDList, nixlRemoteDList, nixlXferDList
from .enums import nixl_mem_t

logger = logging.getLogger("kvxfer.compat.nixl")

MEMORY = {
    "DRAM": nixl_mem_t.DRAM_SEG,
    "VRAM": nixl_mem_t.VRAM_SEG,
    "FILE": nixl_mem_t.FILE_SEG,
    "BLOCK": nixl_mem_t.BLK_SEG,
    "OBJ": nixl_mem_t.OBJ_SEG,
    # as they were called once
    "cpu": nixl_mem_t.DRAM_SEG,
    "cuda": nixl_mem_t.VRAM_SEG,
}

List = TypeVar("List", nixlRegDList, nixlXferDList, nixlRemoteDList)


def _is_tensor(thing: Any) -> bool:
    # There is none where torch was not imported, which takes a second.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)


def _nothing(kind: type[List], why: str) -> List | None:
    """As in NIXL, what cannot be told apart becomes None, and a line of the log."""
    logger.error("no descriptors: %s", why)
    return None


def _of_tensors(kind: type[List], tensors: list[Any]) -> List | None:
    rows = np.zeros((len(tensors), 3), dtype=np.uint64)
    for row, tensor in zip(rows, tensors):
        if tensor.device != tensors[0].device:
            return _nothing(kind, "the tensors are on several devices")
        if not tensor.is_contiguous():
            return _nothing(kind, "a tensor is not contiguous")
        # A device of -1 is the host.
        place = max(tensor.get_device(), 0)
        row[:] = (tensor.data_ptr(), tensor.numel() * tensor.element_size(), place)
    on_host = tensors[0].get_device() == -1
    return kind(MEMORY["DRAM" if on_host else "VRAM"], rows)


def _of_values(kind: type[List], descs: Any, mem_type: Any, fits: bool, form: str) -> List | None:
    if mem_type is None:
        return _nothing(kind, "mem_type is needed where there is no tensor to tell it")
    if not fits:
        return _nothing(kind, f"expected {form}")
    return kind(MEMORY[mem_type], descs=descs)


def to_descs(kind: type[List], descs: Any, mem_type: str | None) -> List | None:
    """A list of that kind. None, after a line of the log: these are not descriptors, mem_type is
    missing, a tensor has gaps. KeyError: no such mem_type."""
    if isinstance(descs, kind):
        return descs
    if isinstance(descs, DescList):
        return _nothing(kind, f"they are a {type(descs).__name__}; expected a {kind.__name__}")
    first = descs[0]
    arity = kind._arity
    if isinstance(first, tuple):
        return _of_values(kind, descs, mem_type, len(first) == arity, f"tuples of {arity}")
    if kind is nixlRemoteDList:
        return _nothing(kind, "a list of tuples (address, bytes, device, agent) is needed")
    if isinstance(descs, np.ndarray):
        fits = descs.ndim == 2 and descs.shape[1] == 3
        return _of_values(kind, descs, mem_type, fits, "an array of N rows of 3")
    if _is_tensor(descs):
        return _of_tensors(kind, [descs])
    if _is_tensor(first):
        return _of_tensors(kind, descs)
    return _nothing(kind, f"a {type(descs).__name__} of {type(first).__name__} is none")

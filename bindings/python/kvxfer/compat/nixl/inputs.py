"""Descriptor lists from what callers have: tuples, arrays, tensors."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .dlist import nixlRegDList, nixlXferDList

# The kind of list: a class of bindings.py, or what a program has put in its place.
Kind = Callable[[Any, Any], Any]


class NotDescriptorsError(Exception):
    """The input is not a recognised form of descriptors; the text says why."""


def _is_tensor(thing: Any) -> bool:
    # There is none where torch was not imported, which takes a second.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)


def _row(tensor: Any, first: Any) -> tuple[int, int, int]:
    if tensor.device != first.device:
        raise NotDescriptorsError("the tensors are on several devices")
    if not tensor.is_contiguous():
        raise NotDescriptorsError("a tensor is not contiguous")
    # A device of -1 is the host.
    place = max(tensor.get_device(), 0)
    return tensor.data_ptr(), tensor.numel() * tensor.element_size(), place


def _check(mem_type: Any, fits: bool, form: str) -> None:
    if mem_type is None:
        raise NotDescriptorsError("mem_type is needed where there is no tensor to tell it")
    if not fits:
        raise NotDescriptorsError(f"expected {form}")


def to_descs(kind: Kind, form: str, descs: Any, mem_type: Any, mems: Mapping[Any, Any]) -> Any:
    """What ``kind`` makes of them; ``form``: "xfer", "reg" or "remote". ``mems``: by mem_type.

    NotDescriptorsError: these are none, mem_type is missing, a tensor has gaps; KeyError: no such
    mem_type."""
    if isinstance(descs, kind):  # type: ignore[arg-type]
        return descs
    if form != "remote" and isinstance(descs, (nixlXferDList, nixlRegDList)):
        raise NotDescriptorsError(f"they are a {type(descs).__name__}")
    first = descs[0]
    arity = 3 if form == "xfer" else 4
    if isinstance(first, tuple):
        _check(mem_type, len(first) == arity, f"tuples of {arity}")
        return kind(mems[mem_type], descs)
    if form == "remote":
        raise NotDescriptorsError("a list of tuples (address, bytes, device, agent) is needed")
    if isinstance(descs, np.ndarray):
        _check(mem_type, descs.ndim == 2 and descs.shape[1] == 3, "an array of N rows of 3")
        return kind(mems[mem_type], descs)
    if _is_tensor(descs):
        mem = mems["DRAM" if descs.get_device() == -1 else "VRAM"]
        row = _row(descs, descs)
        return kind(mem, [row if form == "xfer" else (*row, "")])
    if _is_tensor(first):
        mem = mems["DRAM" if first.get_device() == -1 else "VRAM"]
        rows = [_row(tensor, first) for tensor in descs]
        return kind(mem, np.array(rows, dtype=np.uint64).reshape(-1, 3))
    raise NotDescriptorsError(f"a {type(descs).__name__} of {type(first).__name__} is none")

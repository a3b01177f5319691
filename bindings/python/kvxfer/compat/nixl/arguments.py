"""What NIXL takes as a name, a message, a list of indices; TypeError for anything else."""

import operator
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np


def to_text(value: Any, what: str) -> str:
    """A name: str, or bytes of UTF-8."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)):
        return value.decode()
    raise TypeError(f"{what} is a {type(value).__name__}; expected str or bytes")


def to_bytes(value: Any, what: str) -> bytes:
    """A message: bytes, or str, which is sent as UTF-8."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray):
        return bytes(value)
    raise TypeError(f"{what} is a {type(value).__name__}; expected bytes or str")


def to_int(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is a {type(value).__name__}; expected an integer") from None


def to_port(value: Any) -> int:
    port = to_int(value, "port")
    if not -(2**31) <= port < 2**31:
        raise TypeError(f"port is {port}; expected an int of 32 bits")
    return port


def to_indices(indices: Any, what: str) -> np.ndarray:
    """A new array of integers, one-dimensional, of which nothing is known to be in range.

    RuntimeError: not a sequence of integers, as in NIXL; ValueError: not one-dimensional."""
    if isinstance(indices, np.ndarray):
        if indices.ndim != 1:
            raise ValueError(f"{what} has {indices.ndim} dimensions; expected 1")
        if indices.size == 0:
            return np.zeros(0, dtype=np.int32)
        # NIXL would cast, and move other blocks than were meant.
        if indices.dtype.kind not in "iu":
            raise RuntimeError(f"{what} is an array of {indices.dtype}; expected integers")
        if not indices.dtype.isnative:
            return indices.astype(indices.dtype.newbyteorder("="))
        # The caller may use its array again.
        return indices.copy()
    if isinstance(indices, (str, bytes)) or not isinstance(indices, Iterable):
        raise RuntimeError(f"{what} is a {type(indices).__name__}; expected integers")
    values = list(indices)
    if not values:
        return np.zeros(0, dtype=np.int32)
    try:
        # The fastest way to so many: a third of what array.array or numpy take.
        return np.frombuffer(struct.pack(f"{len(values)}i", *values), dtype=np.int32)
    except struct.error as error:
        raise RuntimeError(f"{what}: {error}") from None

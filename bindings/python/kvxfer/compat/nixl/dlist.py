"""Descriptor lists: (address, bytes, device), in NIXL's three kinds.

The numbers are rows of one array, so that a list of 100,000 costs no Python object an element; the
tuples of NIXL's interface are made on access.
"""

import array
import itertools
import operator
import struct
from typing import Any

import numpy as np

from .enums import nixl_mem_t
from .errors import nixl_error, nixlNotFoundError

_HEADER = struct.Struct("<8sIIQ")  # magic, memory, elements of a tuple, rows
_MAGIC = b"kvxdlst1"
_BIGGEST = 2**64 - 1


def _rows_of_tuples(descs: list[Any], arity: int) -> np.ndarray:
    """The first three elements of each tuple."""
    if not all(map(tuple.__instancecheck__, descs)):
        raise TypeError("a descriptor of the list is not a tuple")
    if set(map(len, descs)) - {arity}:
        raise ValueError(f"a descriptor of the list has not {arity} elements")
    if arity > 3:
        descs = [desc[:3] for desc in descs]
    try:
        flat = array.array("Q", itertools.chain.from_iterable(descs))
    except (TypeError, OverflowError) as error:
        raise RuntimeError(f"a descriptor is not of integers from 0 to 2^64 - 1: {error}") from None
    return np.asarray(flat).reshape(-1, 3)


def rows_of_array(descs: np.ndarray, columns: int) -> np.ndarray:
    """The array itself, as uint64. ValueError: other shape or type, or gaps."""
    if descs.ndim != 2 or descs.shape[1] != columns:
        raise ValueError(f"the array has shape {descs.shape}; expected N rows of {columns}")
    if descs.dtype not in (np.uint64, np.int64) or not descs.dtype.isnative:
        raise ValueError(f"the array is of {descs.dtype}; expected uint64 or int64")
    if not descs.flags.c_contiguous:
        raise ValueError("the array is not contiguous")
    return descs.view(np.uint64)


class DescList:
    """What the three kinds share. Not thread-safe: one owner at a time, as in NIXL."""

    _arity = 3

    def __init__(self, type: nixl_mem_t, init_size: Any = 0, *, descs: Any = None) -> None:
        """``init_size``: a number of zeroed descriptors, or in its place ``descs``."""
        if not isinstance(type, nixl_mem_t):
            raise TypeError(f"type is {type!r}; expected a nixl_mem_t")
        given = init_size if descs is None else descs
        self._mem = type
        self._shared = False
        self._more: list[Any] = []
        if isinstance(given, list):
            rows = _rows_of_tuples(given, self._arity)
            if self._arity > 3:
                self._more = [self._check_more(desc[3]) for desc in given]
        elif isinstance(given, np.ndarray):
            rows = self._take_array(given)
        else:
            rows = self._zeros(given)
        self._buffer = rows
        self._count = len(rows)

    def _zeros(self, size: Any) -> np.ndarray:
        try:
            count = operator.index(size)
        except TypeError:
            raise TypeError(
                f"descriptors are a {type(size).__name__}; expected a list of tuples or an array"
            ) from None
        if count < 0:
            raise ValueError(f"init_size is {count}")
        self._more = [self._no_more] * count if self._arity > 3 else []
        return np.zeros((count, 3), dtype=np.uint64)

    def _take_array(self, descs: np.ndarray) -> np.ndarray:
        rows = rows_of_array(descs, 3).copy()
        self._more = [self._no_more] * len(rows) if self._arity > 3 else []
        return rows

    # The fourth element: what an absent one is, and what a given one becomes.
    _no_more: Any = None

    def _check_more(self, value: Any) -> Any:
        raise NotImplementedError

    @property
    def _rows(self) -> np.ndarray:
        """(N, 3) of uint64; what has it keeps what the list was then."""
        self._shared = True
        return self._buffer[: self._count]

    def _own(self, room: int = 0) -> None:
        """Makes the buffer this list's alone, with space for ``room`` rows more."""
        needed = self._count + room
        if not self._shared and needed <= len(self._buffer):
            return
        buffer = np.zeros((max(needed, 2 * self._count if room else 0), 3), dtype=np.uint64)
        buffer[: self._count] = self._buffer[: self._count]
        self._buffer = buffer
        self._shared = False

    def _parse(self, desc: Any) -> tuple[list[int], Any]:
        if not isinstance(desc, tuple):
            raise TypeError(f"the descriptor is a {type(desc).__name__}; expected a tuple")
        if len(desc) < self._arity:
            raise IndexError(f"the descriptor has {len(desc)} elements; expected {self._arity}")
        try:
            numbers = [operator.index(value) for value in desc[:3]]
        except TypeError as error:
            raise RuntimeError(f"the descriptor is not of integers: {error}") from None
        if min(numbers) < 0 or max(numbers) > _BIGGEST:
            raise RuntimeError("a number of the descriptor is not from 0 to 2^64 - 1")
        return numbers, self._check_more(desc[3]) if self._arity > 3 else None

    def _at(self, index: Any) -> int:
        try:
            at = operator.index(index)
        except TypeError:
            raise TypeError(f"the index is a {type(index).__name__}") from None
        if at < 0:
            raise TypeError(f"the index is {at}; expected 0 or more")
        if at >= self._count:
            raise IndexError(f"the index is {at}; the list has {self._count} descriptors")
        return at

    def getType(self) -> nixl_mem_t:
        return self._mem

    def descCount(self) -> int:
        return self._count

    def isEmpty(self) -> bool:
        return self._count == 0

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        at = self._at(index)
        numbers = tuple(self._buffer[at].tolist())
        return (*numbers, self._more[at]) if self._arity > 3 else numbers

    def __setitem__(self, index: Any, desc: tuple[Any, ...]) -> None:
        at = self._at(index)
        numbers, more = self._parse(desc)
        self._own()
        self._buffer[at] = numbers
        if self._arity > 3:
            self._more[at] = more

    def addDesc(self, desc: tuple[Any, ...]) -> None:
        numbers, more = self._parse(desc)
        self._own(1)
        self._buffer[self._count] = numbers
        self._count += 1
        if self._arity > 3:
            self._more.append(more)

    append = addDesc

    def remDesc(self, index: int) -> None:
        """IndexError: there is none."""
        at = operator.index(index)
        if not 0 <= at < self._count:
            raise IndexError(f"the index is {at}; the list has {self._count} descriptors")
        self._buffer = np.delete(self._buffer[: self._count], at, axis=0)
        self._shared = False
        self._count -= 1
        if self._arity > 3:
            del self._more[at]

    def clear(self) -> None:
        self._buffer = np.zeros((0, 3), dtype=np.uint64)
        self._shared = False
        self._count = 0
        self._more = []

    def print(self) -> None:
        """To standard output."""
        lines = [f"{type(self).__name__} of {self._mem.name}, {self._count} descriptors"]
        lines += [f"  {self[i]}" for i in range(self._count)]
        print("\n".join(lines))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (
            self._mem == other._mem
            and np.array_equal(self._buffer[: self._count], other._buffer[: other._count])
            and self._more == other._more
        )

    __hash__ = None  # type: ignore[assignment]

    def _index(self, desc: tuple[Any, ...]) -> int:
        numbers, _ = self._parse(desc)
        same = (self._buffer[: self._count] == np.array(numbers, dtype=np.uint64)).all(axis=1)
        if not same.any():
            raise nixl_error(nixlNotFoundError, f"{desc} is not in the list")
        return int(same.argmax())

    def __getstate__(self) -> bytes:
        head = _HEADER.pack(_MAGIC, int(self._mem), self._arity, self._count)
        tail = b"".join(struct.pack("<I", len(more)) + more for more in self._more)
        return head + self._buffer[: self._count].tobytes() + tail

    def __setstate__(self, state: bytes) -> None:
        """ValueError: not what ``__getstate__`` made."""
        try:
            magic, mem, arity, count = _HEADER.unpack_from(state)
            if magic != _MAGIC or arity != self._arity:
                raise ValueError("another kind of list")
            at = _HEADER.size + 24 * count
            rows = np.frombuffer(state[_HEADER.size : at], dtype="<u8").reshape(count, 3)
            more = []
            for _ in range(count if arity > 3 else 0):
                (size,) = struct.unpack_from("<I", state, at)
                more.append(state[at + 4 : at + 4 + size])
                at += 4 + size
            if at != len(state):
                raise ValueError("its length is wrong")
            self._mem = nixl_mem_t(mem)
        except (struct.error, ValueError, TypeError) as error:
            raise ValueError(f"not a serialized {type(self).__name__}: {error}") from None
        self._buffer = rows.astype(np.uint64)
        self._shared = False
        self._count = count
        self._more = more


class nixlXferDList(DescList):
    """What is moved: (address, bytes, device)."""

    def index(self, desc: tuple[Any, ...]) -> int:
        """The first that equals it. nixlNotFoundError: none does."""
        return self._index(desc)


class nixlRegDList(DescList):
    """What is registered: (address, bytes, device, meta); ``meta`` is bytes, given as str too."""

    _arity = 4
    _no_more = b""

    def _check_more(self, value: Any) -> bytes:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, (bytes, bytearray)):
            return bytes(value)
        raise RuntimeError(f"the fourth element is a {type(value).__name__}; expected bytes or str")

    def index(self, desc: tuple[Any, ...]) -> int:
        """The first of the same range, whatever its meta. nixlNotFoundError: none is."""
        return self._index(desc)

    def trim(self) -> nixlXferDList:
        """The ranges, without meta."""
        return nixlXferDList(self._mem, self._buffer[: self._count].copy())


class nixlRemoteDList(DescList):
    """What is where: (address, bytes, device, agent)."""

    _arity = 4
    _no_more = ""

    def _check_more(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, (bytes, bytearray)):
            return value.decode()
        raise RuntimeError(f"the fourth element is a {type(value).__name__}; expected a name")

    def _take_array(self, descs: np.ndarray) -> np.ndarray:
        raise TypeError("remote descriptors are a list of tuples; an array has no agents")

    def __reduce__(self) -> Any:
        raise TypeError("a nixlRemoteDList cannot be pickled")

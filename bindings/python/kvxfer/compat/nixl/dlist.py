"""Descriptor lists: (address, bytes, device), in NIXL's three kinds.

The numbers are rows of one array, so that a list of 100,000 costs no Python object an element; the
tuples of NIXL's interface are made on access.
"""

import array
import itertools
import operator
import struct
from typing import Any, ClassVar

import numpy as np

from .enums import nixl_mem_t
from .errors import nixl_error, nixlNotFoundError
from .native import Native

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


class DescList(Native):
    """What the three kinds share. Not thread-safe: one owner at a time, as in NIXL."""

    __slots__ = ("_kvx_mem", "_kvx_shared", "_kvx_more", "_kvx_buffer", "_kvx_count")
    _kvx_arity = 3

    def __init__(self, type: nixl_mem_t, init_size: Any = 0, *, descs: Any = None) -> None:
        """``init_size``: a number of zeroed descriptors, or in its place ``descs``."""
        if not isinstance(type, nixl_mem_t):
            raise TypeError(f"type is {type!r}; expected a nixl_mem_t")
        given = init_size if descs is None else descs
        self._kvx_mem = nixl_mem_t(int(type))
        self._kvx_shared = False
        self._kvx_more: list[Any] = []
        if isinstance(given, list):
            rows = _rows_of_tuples(given, self._kvx_arity)
            if self._kvx_arity > 3:
                self._kvx_more = [self._kvx_check_more(desc[3]) for desc in given]
        elif isinstance(given, np.ndarray):
            rows = self._kvx_take_array(given)
        else:
            rows = self._kvx_zeros(given)
        self._kvx_buffer = rows
        self._kvx_count = len(rows)
        Native.__init__(self)

    def _kvx_zeros(self, size: Any) -> np.ndarray:
        try:
            count = operator.index(size)
        except TypeError:
            raise TypeError(
                f"descriptors are a {type(size).__name__}; expected a list of tuples or an array"
            ) from None
        if count < 0:
            raise ValueError(f"init_size is {count}")
        self._kvx_more = [self._kvx_no_more] * count if self._kvx_arity > 3 else []
        return np.zeros((count, 3), dtype=np.uint64)

    def _kvx_take_array(self, descs: np.ndarray) -> np.ndarray:
        rows = rows_of_array(descs, 3).copy()
        self._kvx_more = [self._kvx_no_more] * len(rows) if self._kvx_arity > 3 else []
        return rows

    # The fourth element: what an absent one is, and what a given one becomes.
    _kvx_no_more: Any = None

    def _kvx_check_more(self, value: Any) -> Any:
        raise NotImplementedError

    @property
    def _kvx_rows(self) -> np.ndarray:
        """(N, 3) of uint64; what has it keeps what the list was then."""
        self._kvx_shared = True
        return self._kvx_buffer[: self._kvx_count]

    def _kvx_own(self, room: int = 0) -> None:
        """Makes the buffer this list's alone, with space for ``room`` rows more."""
        needed = self._kvx_count + room
        if not self._kvx_shared and needed <= len(self._kvx_buffer):
            return
        buffer = np.zeros((max(needed, 2 * self._kvx_count if room else 0), 3), dtype=np.uint64)
        buffer[: self._kvx_count] = self._kvx_buffer[: self._kvx_count]
        self._kvx_buffer = buffer
        self._kvx_shared = False

    def _kvx_parse(self, desc: Any) -> tuple[list[int], Any]:
        if not isinstance(desc, tuple):
            raise TypeError(f"the descriptor is a {type(desc).__name__}; expected a tuple")
        if len(desc) < self._kvx_arity:
            raise IndexError(f"the descriptor has {len(desc)} elements; expected {self._kvx_arity}")
        try:
            numbers = [operator.index(value) for value in desc[:3]]
        except TypeError as error:
            raise RuntimeError(f"the descriptor is not of integers: {error}") from None
        if min(numbers) < 0 or max(numbers) > _BIGGEST:
            raise RuntimeError("a number of the descriptor is not from 0 to 2^64 - 1")
        return numbers, self._kvx_check_more(desc[3]) if self._kvx_arity > 3 else None

    def _kvx_at(self, index: Any) -> int:
        try:
            at = operator.index(index)
        except TypeError:
            raise TypeError(f"the index is a {type(index).__name__}") from None
        if at < 0:
            raise TypeError(f"the index is {at}; expected 0 or more")
        if at >= self._kvx_count:
            raise IndexError(f"the index is {at}; the list has {self._kvx_count} descriptors")
        return at

    def getType(self) -> nixl_mem_t:
        return self._kvx_mem

    def descCount(self) -> int:
        return self._kvx_count

    def isEmpty(self) -> bool:
        return self._kvx_count == 0

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return self._kvx_tuple(self._kvx_at(index))

    def _kvx_tuple(self, at: int) -> tuple[Any, ...]:
        numbers = tuple(self._kvx_buffer[at].tolist())
        return (*numbers, self._kvx_more[at]) if self._kvx_arity > 3 else numbers

    def __setitem__(self, index: Any, desc: tuple[Any, ...]) -> None:
        at = self._kvx_at(index)
        numbers, more = self._kvx_parse(desc)
        self._kvx_own()
        self._kvx_buffer[at] = numbers
        if self._kvx_arity > 3:
            self._kvx_more[at] = more

    def addDesc(self, desc: tuple[Any, ...]) -> None:
        numbers, more = self._kvx_parse(desc)
        self._kvx_own(1)
        self._kvx_buffer[self._kvx_count] = numbers
        self._kvx_count += 1
        if self._kvx_arity > 3:
            self._kvx_more.append(more)

    append = addDesc

    def remDesc(self, index: int) -> None:
        """IndexError: there is none."""
        at = operator.index(index)
        if not 0 <= at < self._kvx_count:
            raise IndexError(f"the index is {at}; the list has {self._kvx_count} descriptors")
        self._kvx_buffer = np.delete(self._kvx_buffer[: self._kvx_count], at, axis=0)
        self._kvx_shared = False
        self._kvx_count -= 1
        if self._kvx_arity > 3:
            del self._kvx_more[at]

    def clear(self) -> None:
        self._kvx_buffer = np.zeros((0, 3), dtype=np.uint64)
        self._kvx_shared = False
        self._kvx_count = 0
        self._kvx_more = []

    def print(self) -> None:
        """To standard output."""
        lines = [f"{type(self).__name__} of {self._kvx_mem.name}, {self._kvx_count} descriptors"]
        lines += [f"  {self._kvx_tuple(i)}" for i in range(self._kvx_count)]
        print("\n".join(lines))

    # The class that one has to be of to equal one of these; a program's subclasses are.
    _kvx_kind: ClassVar[type]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DescList) or not isinstance(other, self._kvx_kind):
            return NotImplemented
        return (
            self._kvx_mem == other._kvx_mem
            and np.array_equal(self._kvx_now(), other._kvx_now())
            and self._kvx_more == other._kvx_more
        )

    __hash__ = None  # type: ignore[assignment]

    def _kvx_now(self) -> np.ndarray:
        """For a look within one call."""
        return self._kvx_buffer[: self._kvx_count]

    def _kvx_index(self, desc: tuple[Any, ...]) -> int:
        numbers, _ = self._kvx_parse(desc)
        same = (self._kvx_now() == np.array(numbers, dtype=np.uint64)).all(axis=1)
        if not same.any():
            raise nixl_error(nixlNotFoundError, f"{desc} is not in the list")
        return int(same.argmax())

    # Copied and pickled by what follows.
    __reduce_ex__ = object.__reduce_ex__

    def __getstate__(self) -> bytes:
        head = _HEADER.pack(_MAGIC, int(self._kvx_mem), self._kvx_arity, self._kvx_count)
        tail = b"".join(struct.pack("<I", len(more)) + more for more in self._kvx_more)
        return head + self._kvx_buffer[: self._kvx_count].tobytes() + tail

    def __setstate__(self, state: bytes) -> None:
        """ValueError: not what ``__getstate__`` made."""
        try:
            magic, mem, arity, count = _HEADER.unpack_from(state)
            if magic != _MAGIC or arity != self._kvx_arity:
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
            if mem not in nixl_mem_t._kvx_names:
                raise ValueError(f"a kind of memory of number {mem}")
            self._kvx_mem = nixl_mem_t(mem)
        except (struct.error, ValueError, TypeError) as error:
            raise ValueError(f"not a serialized {type(self).__name__}: {error}") from None
        self._kvx_buffer = rows.astype(np.uint64)
        self._kvx_shared = False
        self._kvx_count = count
        self._kvx_more = more
        Native.__init__(self)


class nixlXferDList(DescList):
    """What is moved: (address, bytes, device)."""

    __slots__ = ()

    def index(self, desc: tuple[Any, ...]) -> int:
        """The first that equals it. nixlNotFoundError: none does."""
        return self._kvx_index(desc)


class nixlRegDList(DescList):
    """What is registered: (address, bytes, device, meta); ``meta`` is bytes, given as str too."""

    __slots__ = ()
    _kvx_arity = 4
    _kvx_no_more = b""

    def _kvx_check_more(self, value: Any) -> bytes:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, (bytes, bytearray)):
            return bytes(value)
        raise RuntimeError(f"the fourth element is a {type(value).__name__}; expected bytes or str")

    def index(self, desc: tuple[Any, ...]) -> int:
        """The first of the same range, whatever its meta. nixlNotFoundError: none is."""
        return self._kvx_index(desc)

    def trim(self) -> nixlXferDList:
        """The ranges, without meta."""
        return nixlXferDList(self._kvx_mem, self._kvx_buffer[: self._kvx_count].copy())


class nixlRemoteDList(DescList):
    """What is where: (address, bytes, device, agent)."""

    __slots__ = ()
    _kvx_arity = 4
    _kvx_no_more = ""

    def _kvx_check_more(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, (bytes, bytearray)):
            return value.decode()
        raise RuntimeError(f"the fourth element is a {type(value).__name__}; expected a name")

    def _kvx_take_array(self, descs: np.ndarray) -> np.ndarray:
        raise TypeError("remote descriptors are a list of tuples; an array has no agents")

    __reduce_ex__ = Native.__reduce_ex__


for _kind in (nixlXferDList, nixlRegDList, nixlRemoteDList):
    _kind._kvx_kind = _kind

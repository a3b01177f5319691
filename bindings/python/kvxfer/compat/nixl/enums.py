"""NIXL's enumerations and constants, with the numbers that they have there.

They are not Python's enumerations: a member is always true, has no order and no arithmetic, and a
number without a name is a value too. What a member equals depends on its C++ type.
"""

import operator
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from .native import Native


class _Enumeration(Native):
    """Equal to the members of its own enumeration alone."""

    __slots__ = ("_kvx_number",)
    __members__: ClassVar[dict[str, Any]] = {}
    _kvx_kind: ClassVar[type]
    _kvx_names: ClassVar[dict[int, str]] = {}
    _kvx_range: ClassVar[tuple[int, int]] = (-(2**31), 2**31 - 1)

    def __init__(self, value: Any) -> None:
        """TypeError: not an integer, or beyond the C++ type."""
        if hasattr(value, "__index__"):
            number = operator.index(value)
        elif hasattr(value, "__int__") and not isinstance(value, float):
            number = int(value)
        else:
            raise TypeError(f"the value is a {type(value).__name__}; expected an integer")
        least, most = self._kvx_range
        if not least <= number <= most:
            raise TypeError(f"the value is {number}; expected {least} to {most}")
        Native.__init__(self)
        self._kvx_number = number

    @property
    def name(self) -> str:
        """ "???": the number is none of the enumeration's."""
        return self._kvx_names.get(self._kvx_number, "???")

    @property
    def value(self) -> int:
        return self._kvx_number

    def __int__(self) -> int:
        return self._kvx_number

    def __index__(self) -> int:
        return self._kvx_number

    def _kvx_equals(self, other: Any) -> bool:
        return isinstance(other, self._kvx_kind) and int(other) == self._kvx_number

    def __eq__(self, other: object) -> bool:
        return self._kvx_equals(other)

    def __ne__(self, other: object) -> bool:
        return not self._kvx_equals(other)

    def __hash__(self) -> int:
        return hash(self._kvx_number)

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __repr__(self) -> str:
        return f"<{self}: {self._kvx_number}>"

    # Copied and pickled as its number.
    __reduce_ex__ = object.__reduce_ex__

    def __getstate__(self) -> int:
        return self._kvx_number

    def __setstate__(self, state: int) -> None:
        _Enumeration.__init__(self, state)


class _Unsigned(_Enumeration):
    """Equal to its number as well."""

    __slots__ = ()
    _kvx_range = (0, 2**32 - 1)

    def _kvx_equals(self, other: Any) -> bool:
        if isinstance(other, int):
            return other == self._kvx_number
        return _Enumeration._kvx_equals(self, other)


class _Signed(_Enumeration):
    """Equal to whatever stands for its number, members of other enumerations included."""

    __slots__ = ()

    def _kvx_equals(self, other: Any) -> bool:
        return hasattr(other, "__index__") and operator.index(other) == self._kvx_number


Kind = TypeVar("Kind", bound=type[_Enumeration])


def _members(**numbers: int) -> Callable[[Kind], Kind]:
    def add(kind: Kind) -> Kind:
        kind._kvx_kind = kind
        kind._kvx_names = {}
        kind.__members__ = {}
        for name, number in numbers.items():
            kind._kvx_names.setdefault(number, name)
            kind.__members__[name] = kind(number)
            setattr(kind, name, kind.__members__[name])
        return kind

    return add


@_members(DRAM_SEG=0, VRAM_SEG=1, BLK_SEG=2, OBJ_SEG=3, FILE_SEG=4)
class nixl_mem_t(_Unsigned):
    """Kinds of memory; kvxfer moves DRAM_SEG, and VRAM_SEG where there is a CUDA driver."""

    __slots__ = ()
    DRAM_SEG: ClassVar[Any]
    VRAM_SEG: ClassVar[Any]
    BLK_SEG: ClassVar[Any]
    OBJ_SEG: ClassVar[Any]
    FILE_SEG: ClassVar[Any]


@_members(NIXL_READ=0, NIXL_WRITE=1)
class nixl_xfer_op_t(_Unsigned):
    """Directions, as seen from the initiator."""

    __slots__ = ()
    NIXL_READ: ClassVar[Any]
    NIXL_WRITE: ClassVar[Any]


@_members(
    NIXL_IN_PROG=1,
    NIXL_SUCCESS=0,
    NIXL_ERR_NOT_POSTED=-1,
    NIXL_ERR_INVALID_PARAM=-2,
    NIXL_ERR_BACKEND=-3,
    NIXL_ERR_NOT_FOUND=-4,
    NIXL_ERR_MISMATCH=-5,
    NIXL_ERR_NOT_ALLOWED=-6,
    NIXL_ERR_REPOST_ACTIVE=-7,
    NIXL_ERR_UNKNOWN=-8,
    NIXL_ERR_NOT_SUPPORTED=-9,
)
class nixl_status_t(_Signed):
    """What a call of nixlAgent returns, or raises where it is negative."""

    __slots__ = ()
    NIXL_IN_PROG: ClassVar[Any]
    NIXL_SUCCESS: ClassVar[Any]
    NIXL_ERR_INVALID_PARAM: ClassVar[Any]
    NIXL_ERR_NOT_FOUND: ClassVar[Any]


@_members(
    NIXL_THREAD_SYNC_NONE=0,
    NIXL_THREAD_SYNC_STRICT=1,
    NIXL_THREAD_SYNC_RW=2,
    NIXL_THREAD_SYNC_DEFAULT=0,
)
class nixl_thread_sync_t(_Enumeration):
    """How calls of several threads are kept apart. Here they always are."""

    __slots__ = ()
    NIXL_THREAD_SYNC_NONE: ClassVar[Any]
    NIXL_THREAD_SYNC_STRICT: ClassVar[Any]
    NIXL_THREAD_SYNC_RW: ClassVar[Any]
    NIXL_THREAD_SYNC_DEFAULT: ClassVar[Any]


@_members(NIXL_COST_ANALYTICAL_BACKEND=0)
class nixl_cost_t(_Enumeration):
    """Where an estimate of a transfer's duration comes from."""

    __slots__ = ()
    NIXL_COST_ANALYTICAL_BACKEND: ClassVar[Any]


NIXL_INIT_AGENT = ""
DEFAULT_COMM_PORT = 8888
# Memory views are for GPU kernels that send by themselves.
HAVE_UCX_GPU_DEVICE_API = False

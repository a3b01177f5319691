"""NIXL's enumerations and constants, with the numbers that they have there."""

import enum


class _Number(enum.IntEnum):
    """Equal to its number."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class _Name(enum.Enum):
    """Converts to its number, but is not equal to it."""

    _value_: int

    def __int__(self) -> int:
        return self.value

    def __index__(self) -> int:
        return self.value


class nixl_mem_t(_Number):
    """Kinds of memory; kvxfer moves DRAM_SEG."""

    DRAM_SEG = 0
    VRAM_SEG = 1
    BLK_SEG = 2
    OBJ_SEG = 3
    FILE_SEG = 4


class nixl_xfer_op_t(_Number):
    """Directions, as seen from the initiator."""

    NIXL_READ = 0
    NIXL_WRITE = 1


class nixl_status_t(_Number):
    """What a call of nixlAgent returns, or raises where it is negative."""

    NIXL_IN_PROG = 1
    NIXL_SUCCESS = 0
    NIXL_ERR_NOT_POSTED = -1
    NIXL_ERR_INVALID_PARAM = -2
    NIXL_ERR_BACKEND = -3
    NIXL_ERR_NOT_FOUND = -4
    NIXL_ERR_MISMATCH = -5
    NIXL_ERR_NOT_ALLOWED = -6
    NIXL_ERR_REPOST_ACTIVE = -7
    NIXL_ERR_UNKNOWN = -8
    NIXL_ERR_NOT_SUPPORTED = -9


class nixl_thread_sync_t(_Name):
    """How calls of several threads are kept apart. Here they always are."""

    NIXL_THREAD_SYNC_NONE = 0
    NIXL_THREAD_SYNC_STRICT = 1
    NIXL_THREAD_SYNC_RW = 2
    NIXL_THREAD_SYNC_DEFAULT = 0


class nixl_cost_t(_Name):
    """Where an estimate of a transfer's duration comes from."""

    NIXL_COST_ANALYTICAL_BACKEND = 0


NIXL_INIT_AGENT = ""
DEFAULT_COMM_PORT = 8888
# Memory views are for GPU kernels that send by themselves.
HAVE_UCX_GPU_DEVICE_API = False

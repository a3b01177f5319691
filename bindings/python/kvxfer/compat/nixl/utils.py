"""Raw memory, for tests and examples that came with NIXL."""

import ctypes

_PAGE = 4096

_libc = ctypes.CDLL(None)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


def malloc_passthru(size: int, /) -> int:
    """The address of ``size`` bytes, page-aligned; for free_passthru. 0: there are none left."""
    return _libc.aligned_alloc(_PAGE, size) or 0


def free_passthru(buf: int, /) -> None:
    _libc.free(buf)


def ba_buf(addr: int, size: int, /) -> None:
    """Fills it with 0xba."""
    ctypes.memset(addr, 0xBA, size)


def verify_transfer(addr1: int, addr2: int, size: int, /) -> None:
    """AssertionError: the two differ."""
    if ctypes.string_at(addr1, size) != ctypes.string_at(addr2, size):
        raise AssertionError(f"{size} bytes at {addr1:#x} and at {addr2:#x} differ")

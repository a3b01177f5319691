"""Memory of a GPU by the CUDA driver's own calls: no torch is needed for it."""

import ctypes
import functools

import numpy as np
from clock import Failure

_LEGACY_STREAM = 1


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Failure(f"no CUDA driver: {error}") from None


def _call(name: str, *arguments: object) -> None:
    result = getattr(_driver(), name)(*arguments)
    if result != 0:
        raise Failure(f"{name}: CUDA error {result}")


@functools.cache
def _make_current(device: int) -> None:
    """The device's primary context, for as long as the process lives, as torch has it."""
    _call("cuInit", 0)
    context = ctypes.c_void_p()
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call("cuCtxSetCurrent", context)


class DeviceArray:
    """Zeroed bytes of a device, for one thread; they stay until the process ends."""

    kind = "VRAM"

    def __init__(self, size: int, device: int) -> None:
        _make_current(device)
        at = ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        self.address, self.size, self.device = at.value, size, device
        self.store(np.zeros(size, dtype=np.uint8))

    def load(self) -> np.ndarray:
        """A copy of all of it."""
        copy = np.empty(self.size, dtype=np.uint8)
        _call("cuMemcpyDtoH_v2", ctypes.c_void_p(copy.ctypes.data), ctypes.c_uint64(self.address),
              ctypes.c_size_t(self.size))  # fmt: skip
        return copy

    def store(self, content: np.ndarray) -> None:
        _call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address),
              ctypes.c_void_p(content.ctypes.data), ctypes.c_size_t(self.size))  # fmt: skip
        # A copy from pageable memory may return when it is on its way.
        _call("cuStreamSynchronize", ctypes.c_void_p(_LEGACY_STREAM))

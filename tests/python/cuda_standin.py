"""GPU memory, streams and events as torch and others show them, over the stand-in CUDA driver
(tests/support/cuda_driver): no GPU and no library for one is needed.

Tests of it are marked ``needs_standin``. Calls are made in the device's primary context, which is
pushed for each: the thread has none afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import sys
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

WHY_NOT = "the stand-in CUDA driver is not in LD_LIBRARY_PATH: build/<preset>/lib/standin"
MISMATCH = 803  # CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, which nothing but an injected fault gives
ILLEGAL_ADDRESS = 700
_AMPLE = 20.0  # seconds

_NON_BLOCKING = 1
_NO_TIMES = 2
_GEQ = 0


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libcuda.so.1")
        library.kvxfer_standin_alias.restype = ctypes.c_void_p
        library.kvxfer_standin_alias.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        library.kvxfer_standin_calls.restype = ctypes.c_uint64
        library.kvxfer_standin_default_stream_uses.restype = ctypes.c_uint64
    except (OSError, AttributeError):  # none, or a real one
        return None
    return library


def available() -> bool:
    """Whether this process finds the stand-in."""
    return _library() is not None


needs_standin = pytest.mark.skipif(not available(), reason=WHY_NOT)


def hooks() -> ctypes.CDLL:
    """kvxfer_standin_...; hooks.h says what each does."""
    library = _library()
    assert library is not None, WHY_NOT
    return library


def call(name: str, *arguments: Any) -> None:
    """One of the driver's, in whatever context is current."""
    result = getattr(hooks(), name)(*arguments)
    assert result == 0, f"{name}: CUDA error {result}"


@functools.cache
def _primary_of(process: int, device: int) -> ctypes.c_void_p:
    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context


@contextlib.contextmanager
def current(device: int) -> Iterator[None]:
    call("cuCtxPushCurrent_v2", _primary_of(os.getpid(), device))
    try:
        yield
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


# cuMemFree waits for all streams, and so would the collector, at any time, for one that is held.
_unnamed: list[tuple[int, int]] = []
_held: weakref.WeakSet[CudaStream] = weakref.WeakSet()


def let_go_of_all() -> None:
    """For the end of a test that may have failed: agents free memory when they are closed."""
    for stream in list(_held):
        stream.let_go()


def _free_unnamed() -> None:
    while _unnamed and not _held:
        device, address = _unnamed.pop()
        with current(device):
            call("cuMemFree_v2", ctypes.c_uint64(address))


class CudaMemory:
    """Bytes of one device. Freed some time after its end; by free() at once."""

    def __init__(self, size: int, device: int = 0) -> None:
        _free_unnamed()
        at = ctypes.c_uint64()
        with current(device):
            call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        self.address, self.size, self.device = at.value, size, device

    def bytes(self) -> np.ndarray:
        """What is in it, to read and to write. Not to be used once it is freed."""
        alias = hooks().kvxfer_standin_alias(self.address, self.size)
        assert alias, "no memory of the device"
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.size).from_address(alias))

    def free(self) -> None:
        address, self.address = self.address, 0
        if address:
            with current(self.device):
                call("cuMemFree_v2", ctypes.c_uint64(address))

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            _unnamed.append((self.device, self.address))


class CudaArray:
    """An array of CUDA memory by the CUDA Array Interface alone. ``device``: what it says of its
    device, None: nothing, as Numba's say nothing."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any = np.uint8,
        device: int = 0,
        stream: int | None = None,
    ) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.memory = CudaMemory(math.prod(shape) * self.dtype.itemsize, device)
        self.device: Any = SimpleNamespace(id=device)
        self.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.memory.address, False),
            "strides": None,
            "stream": self.stream,
        }

    @property
    def address(self) -> int:
        return self.memory.address

    @property
    def nbytes(self) -> int:
        return self.memory.size

    def content(self) -> np.ndarray:
        """A view for the CPU of the test."""
        return self.memory.bytes().view(self.dtype).reshape(self.shape)


class CudaTensor(CudaArray):
    """The same with what else the package looks at in a torch.Tensor on a GPU, but DLPack. vLLM's
    views of one allocation are ``view()``."""

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.float32, device: int = 0) -> None:
        super().__init__(shape, dtype, device)
        self.device = SimpleNamespace(type="cuda", index=device)
        self.is_cuda = True
        self.requires_grad = False
        self._offset = 0

    @property
    def address(self) -> int:
        return self.memory.address + self._offset if self.memory.address else 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return super().__cuda_array_interface__ | {"data": (self.address, False)}

    def view_of(self, first: int, shape: tuple[int, ...]) -> CudaTensor:
        """Another tensor in the same memory, from element ``first`` on."""
        other = object.__new__(CudaTensor)
        other.__dict__ |= self.__dict__ | {"shape": shape}
        other._offset = self._offset + first * self.dtype.itemsize
        return other

    def __getitem__(self, index: int) -> CudaTensor:
        inner = self.shape[1:]
        return self.view_of(range(self.shape[0])[index] * math.prod(inner), inner)

    def content(self) -> np.ndarray:
        count = math.prod(self.shape)
        values = self.memory.bytes()[self._offset :][: count * self.dtype.itemsize]
        return values.view(self.dtype).reshape(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def stride(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        return True

    def get_device(self) -> int:
        return self.memory.device

    def data_ptr(self) -> int:
        return self.address

    def untyped_storage(self) -> Any:
        memory = self.memory
        return SimpleNamespace(data_ptr=lambda: memory.address, nbytes=lambda: memory.size)


class CudaStream:
    """As torch.cuda.Stream: ``cuda_stream`` is its handle, and it has a device."""

    def __init__(self, device: int = 0) -> None:
        self.device_index = device
        handle = ctypes.c_void_p()
        with current(device):
            call("cuStreamCreateWithPriority", ctypes.byref(handle), _NON_BLOCKING, 0)
        assert handle.value
        self.cuda_stream = handle.value
        self._gate = CudaMemory(4, device)
        self._captured = False
        self.holds = 0

    def hold(self) -> None:
        """What is put into it from now on waits until let_go()."""
        self.holds += 1
        _held.add(self)
        self._call("cuStreamWaitValue32_v2", ctypes.c_uint64(self._gate.address), self.holds, _GEQ)

    def let_go(self, holds: int | None = None) -> None:
        """All that hold() has put there; or the first so many of them."""
        self._gate.bytes().view(np.uint32)[0] = self.holds if holds is None else holds
        if holds in (None, self.holds):
            _held.discard(self)

    def copy(self, to: int, source: int, size: int) -> None:
        """Puts a copy between device memories into it."""
        with current(self.device_index):
            call(
                "cuMemcpyAsync",
                ctypes.c_uint64(to),
                ctypes.c_uint64(source),
                ctypes.c_size_t(size),
                ctypes.c_void_p(self.cuda_stream),
            )

    def put(self, word: CudaMemory, value: int) -> None:
        """Puts into it that the first word of that memory becomes ``value``."""
        self._call("cuStreamWriteValue32_v2", ctypes.c_uint64(word.address), value, 0)

    def idle(self) -> bool:
        with current(self.device_index):
            return hooks().cuStreamQuery(ctypes.c_void_p(self.cuda_stream)) == 0

    def synchronize(self) -> None:
        with current(self.device_index):
            call("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))

    def record_event(self) -> CudaEvent:
        """As torch.cuda.Stream's. While the stream is captured the event is a part of the graph, and
        cannot be waited for: here it is one that is gone."""
        event = CudaEvent()
        event.record(self)
        if self._captured:
            with current(self.device_index):
                call("cuEventDestroy_v2", ctypes.c_void_p(event.cuda_event))
            event.let_go()
        return event

    def capture(self, begins: bool) -> None:
        """As if a graph were captured from it."""
        self._captured = begins
        call("kvxfer_standin_capture", ctypes.c_void_p(self.cuda_stream), int(begins))

    def destroy(self) -> None:
        handle, self.cuda_stream = self.cuda_stream, 0
        if handle:
            with current(self.device_index):
                call("cuStreamDestroy_v2", ctypes.c_void_p(handle))

    def _call(self, name: str, *arguments: Any) -> None:
        with current(self.device_index):
            call(name, ctypes.c_void_p(self.cuda_stream), *arguments)

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        with contextlib.suppress(AssertionError):
            self.let_go()
            self.destroy()


class CudaEvent:
    """As torch.cuda.Event, which has no handle before it is recorded."""

    def __init__(self) -> None:
        self.cuda_event = 0
        self._owned = True

    def let_go(self) -> None:
        """It is destroyed by somebody else, or was."""
        self._owned = False

    def record(self, stream: CudaStream) -> None:
        with current(stream.device_index):
            if not self.cuda_event:
                handle = ctypes.c_void_p()
                call("cuEventCreate", ctypes.byref(handle), _NO_TIMES)
                assert handle.value
                self.cuda_event = handle.value
                self._device = stream.device_index
            call(
                "cuEventRecord",
                ctypes.c_void_p(self.cuda_event),
                ctypes.c_void_p(stream.cuda_stream),
            )

    def __del__(self) -> None:
        if self.cuda_event and self._owned and not sys.is_finalizing():
            with contextlib.suppress(AssertionError), current(self._device):
                call("cuEventDestroy_v2", ctypes.c_void_p(self.cuda_event))


def wait_until(holds: Any) -> None:
    """For what comes by itself; fails after a time that no loaded machine takes."""
    end = time.monotonic() + _AMPLE
    while not holds():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.001)

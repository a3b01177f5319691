"""The KV cache of one side: a piece of memory for each layer, and what is in it."""

import mmap
from typing import Any

import numpy as np

_ODD = np.uint64(0x9E3779B97F4A7C15)


class HostArray:
    """As torch allocates a tensor of the host: its pages are of 4 KiB, where numpy's are huge."""

    kind, device = "DRAM", 0

    def __init__(self, size: int) -> None:
        pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._array = np.frombuffer(pages, np.uint8)
        self._array[:: mmap.PAGESIZE] = 0
        self.address, self.size = self._array.ctypes.data, size

    def load(self) -> np.ndarray:
        """The memory itself."""
        return self._array

    def store(self, content: np.ndarray) -> None:
        """What load() gave was changed in place."""


def _array(size: int, device: int | None) -> Any:
    if device is None:
        return HostArray(size)
    from device_memory import DeviceArray  # noqa: PLC0415 (needs a GPU)

    return DeviceArray(size, device)


class Cache:
    """``layers`` arrays of ``blocks`` blocks; block i of layer k is descriptor k * blocks + i.
    ``device``: the GPU in whose memory they are; None: they are in host memory."""

    def __init__(
        self, layers: int, blocks: int, block_bytes: int, seed: int, device: int | None = None
    ) -> None:
        self.blocks, self.block_bytes, self.seed = blocks, block_bytes, seed
        self.layers = [_array(blocks * block_bytes, device) for _ in range(layers)]
        self.kind = self.layers[0].kind

    @property
    def bases(self) -> list[int]:
        return [layer.address for layer in self.layers]

    def regions(self) -> list[tuple[int, int, int, str]]:
        return [(layer.address, layer.size, layer.device, "") for layer in self.layers]

    def rows(self, bases: list[int]) -> np.ndarray:
        """Descriptors of all blocks of a cache of this shape that lies at ``bases``."""
        offsets = np.arange(self.blocks, dtype=np.uint64) * np.uint64(self.block_bytes)
        rows = np.zeros((len(bases) * self.blocks, 3), dtype=np.uint64)
        rows[:, 0] = (np.array(bases, dtype=np.uint64)[:, None] + offsets).ravel()
        rows[:, 1] = self.block_bytes
        rows[:, 2] = self.layers[0].device
        return rows

    def descriptors(self, ids: list[int]) -> np.ndarray:
        """Of those blocks in every layer, layer by layer, as vLLM counts them."""
        offsets = np.arange(len(self.layers), dtype=np.int32) * np.int32(self.blocks)
        return (offsets[:, None] + np.asarray(ids, dtype=np.int32)[None, :]).ravel()

    def _words(self, content: np.ndarray) -> np.ndarray:
        return content.view(np.uint64).reshape(self.blocks, -1)

    def _content(self, layer: int, ids: np.ndarray) -> np.ndarray:
        """No two words of the cache are the same."""
        words = self.block_bytes // 8
        number = ids.astype(np.uint64)[:, None] + np.uint64(layer * self.blocks)
        within = np.arange(words, dtype=np.uint64)[None, :]
        return (number * np.uint64(words) + within + np.uint64(self.seed)) * _ODD

    def fill(self) -> None:
        for number, layer in enumerate(self.layers):
            content = layer.load()
            for first in range(0, self.blocks, 64):
                some = np.arange(first, min(first + 64, self.blocks))
                self._words(content)[some] = self._content(number, some)
            layer.store(content)

    def clear(self, ids: list[int]) -> None:
        for layer in self.layers:
            content = layer.load()
            self._words(content)[ids] = 0
            layer.store(content)

    def wrong(self, ids: list[int], theirs: list[int]) -> str:
        """Empty where blocks ``ids`` have what blocks ``theirs`` of the filled cache have."""
        there = np.asarray(theirs)
        for number, layer in enumerate(self.layers):
            words = self._words(layer.load())[ids]
            differ = np.argwhere(words != self._content(number, there))
            if len(differ):
                at, word = differ[0]
                return f"layer {number}, block {ids[at]}: not what was sent from byte {word * 8}"
        return ""

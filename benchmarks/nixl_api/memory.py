"""The KV cache of one side: a piece of memory for each layer, and what is in it."""

import mmap

import numpy as np

_ODD = np.uint64(0x9E3779B97F4A7C15)


def anonymous(size: int) -> np.ndarray:
    """As torch allocates a tensor of the host: its pages are of 4 KiB, where numpy's are huge."""
    array = np.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    array[:: mmap.PAGESIZE] = 0
    return array


class Cache:
    """``layers`` arrays of ``blocks`` blocks; block i of layer k is descriptor k * blocks + i."""

    def __init__(self, layers: int, blocks: int, block_bytes: int, seed: int) -> None:
        self.blocks, self.block_bytes, self.seed = blocks, block_bytes, seed
        self.layers = [anonymous(blocks * block_bytes) for _ in range(layers)]

    @property
    def bases(self) -> list[int]:
        return [layer.ctypes.data for layer in self.layers]

    def regions(self) -> list[tuple[int, int, int, str]]:
        return [(layer.ctypes.data, layer.size, 0, "") for layer in self.layers]

    def rows(self, bases: list[int]) -> np.ndarray:
        """Descriptors of all blocks of a cache of this shape that lies at ``bases``."""
        offsets = np.arange(self.blocks, dtype=np.uint64) * np.uint64(self.block_bytes)
        rows = np.zeros((len(bases) * self.blocks, 3), dtype=np.uint64)
        rows[:, 0] = (np.array(bases, dtype=np.uint64)[:, None] + offsets).ravel()
        rows[:, 1] = self.block_bytes
        return rows

    def descriptors(self, ids: list[int]) -> np.ndarray:
        """Of those blocks in every layer, layer by layer, as vLLM counts them."""
        offsets = np.arange(len(self.layers), dtype=np.int32) * np.int32(self.blocks)
        return (offsets[:, None] + np.asarray(ids, dtype=np.int32)[None, :]).ravel()

    def _words(self, layer: int) -> np.ndarray:
        return self.layers[layer].view(np.uint64).reshape(self.blocks, -1)

    def _content(self, layer: int, ids: np.ndarray) -> np.ndarray:
        """No two words of the cache are the same."""
        words = self.block_bytes // 8
        number = ids.astype(np.uint64)[:, None] + np.uint64(layer * self.blocks)
        within = np.arange(words, dtype=np.uint64)[None, :]
        return (number * np.uint64(words) + within + np.uint64(self.seed)) * _ODD

    def fill(self) -> None:
        for layer in range(len(self.layers)):
            for first in range(0, self.blocks, 64):
                some = np.arange(first, min(first + 64, self.blocks))
                self._words(layer)[some] = self._content(layer, some)

    def clear(self, ids: list[int]) -> None:
        for layer in range(len(self.layers)):
            self._words(layer)[ids] = 0

    def wrong(self, ids: list[int], theirs: list[int]) -> str:
        """Empty where blocks ``ids`` have what blocks ``theirs`` of the filled cache have."""
        there = np.asarray(theirs)
        for layer in range(len(self.layers)):
            differ = np.argwhere(self._words(layer)[ids] != self._content(layer, there))
            if len(differ):
                at, word = differ[0]
                return f"layer {layer}, block {ids[at]}: not what was sent from byte {word * 8}"
        return ""

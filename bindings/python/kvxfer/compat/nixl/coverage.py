"""Which ranges of memory lie within registered ones. Pure; arrays in, one answer out."""

from collections.abc import Iterable

import numpy as np

Key = tuple[int, int, int]  # address, bytes, device

_TOP = np.uint64(2**64 - 1)


class Coverage:
    """Of a set of ranges: does one of them hold each of those asked about? Immutable."""

    def __init__(self, keys: Iterable[Key]) -> None:
        ranges: dict[int, list[tuple[int, int]]] = {}
        for address, size, device in keys:
            ranges.setdefault(device, []).append((address, min(address + size, int(_TOP))))
        # By device: where ranges start, ascending, and how far those that start no later reach.
        self._devices = {}
        for device, pairs in ranges.items():
            pairs.sort()
            both = np.array(pairs, dtype=np.uint64)
            self._devices[device] = (both[:, 0].copy(), np.maximum.accumulate(both[:, 1]))

    def covers(self, rows: np.ndarray) -> bool:
        """``rows``: (N, 3) of uint64. Each within one range; False for no rows."""
        if len(rows) == 0:
            return False
        devices = rows[:, 2]
        if devices.max() == devices.min():
            return self._covers(int(devices[0]), rows[:, 0], rows[:, 1])
        return all(
            self._covers(int(device), rows[devices == device, 0], rows[devices == device, 1])
            for device in np.unique(devices)
        )

    def covers_strips(self, rows: np.ndarray) -> bool:
        """``rows``: (N, 5) of address, bytes, device, stride, count. From the first block of each
        to the end of its last within one range. False where blocks would be empty, or overlap."""
        if len(rows) == 0:
            return False
        address, size, device, stride, count = (rows[:, i] for i in range(5))
        if (size == 0).any() or (count == 0).any() or (stride < size).any():
            return False
        if (size > _TOP - address).any():
            return False
        steps = count - np.uint64(1)
        if (steps > (_TOP - address - size) // stride).any():
            return False
        return self.covers(np.column_stack((address, steps * stride + size, device)))

    def _covers(self, device: int, address: np.ndarray, size: np.ndarray) -> bool:
        known = self._devices.get(device)
        if known is None:
            return False
        starts, reach = known
        end = address + size
        if (end < address).any():
            return False
        # One range that holds all of them is the common case, and needs no search.
        before = int(np.searchsorted(starts, address.min(), side="right")) - 1
        if before < 0:
            return False
        if reach[before] >= end.max():
            return True
        if (address[1:] >= address[:-1]).all():
            # So are lists of blocks that go cache by cache: a few searches, one for each range.
            cuts = np.searchsorted(address, starts[before + 1 :], side="left")
            firsts = np.concatenate(([0], cuts))
            used = np.flatnonzero(np.diff(np.append(firsts, len(address))))
            furthest = np.maximum.reduceat(end, firsts[used])
            return bool((reach[before + used] >= furthest).all())
        held = np.searchsorted(starts, address, side="right") - 1
        return bool((reach[held] >= end).all())

"""Descriptor lists that transfers are made of: checked once, picked from by index.

The work per descriptor is numpy's and kvxfer's, none of it Python's.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from kvxfer import _errors, _kvxfer

from .arguments import to_indices
from .enums import nixl_mem_t
from .errors import nixl_error, nixlInvalidParamError


class PreparedList:
    """Immutable. ``agent`` is "" for local memory; ``generation`` is that of the remote agent."""

    def __init__(self, agent: str, generation: int, mem: nixl_mem_t, rows: np.ndarray) -> None:
        """``rows``: (N, 3) or (N, 5) of uint64, which nobody changes afterwards; N > 0."""
        self.agent = agent
        self.generation = generation
        self.mem = mem
        self.list = _kvxfer._XferList(rows)
        self._rows = rows
        sizes = rows[:, 1]
        self._size = int(sizes[0]) if sizes.min() == sizes.max() else None
        self._firsts: np.ndarray | None = None

    def _row_of(self, indices: np.ndarray) -> np.ndarray:
        if self._rows.shape[1] == 3:
            return indices
        if self._firsts is None:
            self._firsts = np.cumsum(self._rows[:, 4]) - self._rows[:, 4]
        return np.searchsorted(self._firsts, indices.astype(np.uint64), side="right") - 1

    def sizes(self, indices: np.ndarray) -> int | np.ndarray:
        """The bytes of each; one number where all of the list are of one size. ``indices`` are in
        range, here and below."""
        return self._size if self._size is not None else self._rows[self._row_of(indices), 1]

    def pick(self, indices: np.ndarray) -> Any:
        """nixlInvalidParamError: an index is out of range."""
        try:
            return self.list.pick(indices)
        except _errors.InvalidArgument as error:
            raise nixl_error(nixlInvalidParamError, str(error)) from None

    def rows_at(self, indices: np.ndarray) -> np.ndarray:
        """(N, 3) of address, bytes and device."""
        row = self._row_of(indices)
        rows: np.ndarray = self._rows[row]
        if self._rows.shape[1] == 5:
            assert self._firsts is not None
            step = indices.astype(np.uint64) - self._firsts[row]
            rows = np.column_stack((rows[:, 0] + step * rows[:, 3], rows[:, 1], rows[:, 2]))
        return rows


class Pairs:
    """Local and remote descriptors of one transfer, as many and of equal bytes."""

    def __init__(
        self,
        local: Any,
        remote: Any,
        mems: tuple[nixl_mem_t, nixl_mem_t],
        rows: Callable[[], tuple[np.ndarray, np.ndarray]],
    ) -> None:
        """``local``, ``remote``: _XferList. ``mems``: the kinds of memory. ``rows``: returns both
        as arrays (N, 3), for the rare case that needs them."""
        self.local = local
        self.remote = remote
        self.mems = mems
        self.rows = rows
        self.bytes = local.total_bytes

    def __len__(self) -> int:
        return len(self.local)

    def merged_count(self) -> int:
        """How many are left where neighbours on both sides count as one."""
        return len(_kvxfer._XferList.merge(self.local, self.remote)[0])

    def without_repeats(self, to_local: bool) -> "Pairs | None":
        """Of descriptors with the same destination only the last, which is the one that is there
        in the end. None: no two are the same."""
        local, remote = self.rows()
        destination = (local if to_local else remote)[::-1]
        _, last = np.unique(destination, axis=0, return_index=True)
        if len(last) == len(destination):
            return None
        keep = np.sort(len(destination) - 1 - last)
        kept = local[keep], remote[keep]
        ours, theirs = map(_kvxfer._XferList, kept)
        return Pairs(ours, theirs, self.mems, lambda: kept)


def _check_sizes(local: int | np.ndarray, remote: int | np.ndarray) -> None:
    if isinstance(local, int) and isinstance(remote, int) and local == remote:
        return  # numpy takes 20 µs to say so
    different = np.not_equal(local, remote)
    if np.any(different):
        at = int(np.argmax(different))
        raise nixl_error(
            nixlInvalidParamError,
            f"descriptor {at}: {np.broadcast_to(local, at + 1)[at]} bytes here and "
            f"{np.broadcast_to(remote, at + 1)[at]} there",
        )


def pairs_of_lists(
    local: np.ndarray, remote: np.ndarray, mems: tuple[nixl_mem_t, nixl_mem_t]
) -> Pairs:
    """``local``, ``remote``: (N, 3) of equal N and bytes, which nobody changes afterwards."""
    ours, theirs = map(_kvxfer._XferList, (local, remote))
    return Pairs(ours, theirs, mems, lambda: (local, remote))


def check_lists(local: np.ndarray, remote: np.ndarray) -> None:
    """nixlInvalidParamError: not as many, or not of equal bytes."""
    if len(local) != len(remote):
        raise nixl_error(
            nixlInvalidParamError, f"{len(local)} local descriptors and {len(remote)} remote ones"
        )
    _check_sizes(local[:, 1], remote[:, 1])


def pairs_of_prepared(
    local: PreparedList, local_indices: Any, remote: PreparedList, remote_indices: Any
) -> Pairs:
    """nixlInvalidParamError: a list on the wrong side; no indices, not as many, out of range;
    blocks of unequal bytes."""
    if local.agent or not remote.agent:
        raise nixl_error(
            nixlInvalidParamError,
            'the local list is one prepared for "", the remote one for an agent by name',
        )
    ours = to_indices(local_indices, "local_indices")
    theirs = to_indices(remote_indices, "remote_indices")
    if len(ours) == 0 or len(ours) != len(theirs):
        raise nixl_error(
            nixlInvalidParamError, f"{len(ours)} local indices and {len(theirs)} remote ones"
        )
    picked = local.pick(ours), remote.pick(theirs)
    _check_sizes(local.sizes(ours), remote.sizes(theirs))
    mems = local.mem, remote.mem
    return Pairs(*picked, mems, lambda: (local.rows_at(ours), remote.rows_at(theirs)))

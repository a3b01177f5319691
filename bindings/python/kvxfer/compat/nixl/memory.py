"""The memory that an agent has registered, under NIXL's rules: ranges are counted, not named."""

import logging
import threading
from typing import Any, Literal

from kvxfer import _errors

from .coverage import Coverage, Key
from .dlist import DescList
from .enums import nixl_mem_t
from .errors import nixl_error, nixlBackendError, nixlNotFoundError

logger = logging.getLogger("kvxfer.compat.nixl")

_Kind = Literal["host", "cuda"]
_KINDS: dict[nixl_mem_t, _Kind] = {nixl_mem_t.DRAM_SEG: "host", nixl_mem_t.VRAM_SEG: "cuda"}
HOST = int(nixl_mem_t.DRAM_SEG)
# How long deregistration may wait until nothing can touch the memory, in seconds.
_PATIENCE = 5.0


def _keys(descs: DescList) -> list[Key]:
    return [tuple(row) for row in descs._kvx_rows.tolist()]


class LocalMemory:
    """Thread-safe."""

    def __init__(self) -> None:
        # RLock, here as elsewhere: the garbage collector may run a finaliser of the program's in
        # the midst of a call, and that may call the same agent.
        self._lock = threading.RLock()
        self.in_use = threading.RLock()
        """Held while this process itself reads or writes what is registered."""
        # The id of kvxfer's region of each registration; None: of no bytes, it has none.
        self._regions: dict[int, dict[Key, list[int | None]]] = {}
        self._coverage: dict[int, Coverage] = {}
        self.ever = False
        """Whether anything ever was registered."""

    def register(self, agent: Any, descs: DescList) -> None:
        """All of them, or none. nixlBackendError: kvxfer refuses one, or the list is empty."""
        if descs._kvx_count == 0:
            raise nixl_error(nixlBackendError, "there is nothing to register")
        kind = _KINDS.get(descs._kvx_mem)
        if kind is None:
            name = descs._kvx_mem.name
            raise nixl_error(nixlBackendError, f"kvxfer does not move {name}, only memory")
        rows = descs._kvx_rows
        try:
            made = iter(agent._register_rows(rows[rows[:, 1] > 0], kind))
        except _errors.Error as error:
            logger.error("memory was not registered: %s", error)
            raise nixl_error(nixlBackendError, str(error)) from error
        with self._lock:
            section = self._regions.setdefault(int(descs._kvx_mem), {})
            for key in map(tuple, rows.tolist()):
                section.setdefault(key, []).append(next(made) if key[1] else None)
            self._coverage.pop(int(descs._kvx_mem), None)
            self.ever = True

    def deregister(self, agent: Any, descs: DescList) -> None:
        """One registration of each range, or nothing. nixlNotFoundError: one was never registered.

        nixlBackendError: a transfer still uses one after 5 s; it stays registered."""
        mem = int(descs._kvx_mem)
        with self.in_use, self._lock:
            section = self._regions.get(mem)
            if not section:
                raise nixl_error(nixlNotFoundError, f"no {descs._kvx_mem.name} is registered")
            taken = self._take(section, _keys(descs))
            self._coverage.pop(mem, None)
        regions = {region: key for key, region in taken if region is not None}
        try:
            stuck, why = agent._deregister_ids(list(regions), _PATIENCE)
        except _errors.Error as error:
            stuck, why = list(regions), str(error)
        if stuck:
            with self._lock:
                for region in stuck:
                    self._regions.setdefault(mem, {}).setdefault(regions[region], []).append(region)
                self._coverage.pop(mem, None)
            raise nixl_error(nixlBackendError, f"still in use, and registered: {why}")

    @staticmethod
    def _take(
        section: dict[Key, list[int | None]], keys: list[Key]
    ) -> list[tuple[Key, int | None]]:
        wanted: dict[Key, int] = {}
        for key in keys:
            wanted[key] = wanted.get(key, 0) + 1
            if wanted[key] > len(section.get(key, ())):
                address, size, device = key
                where = f"{size} bytes at {address:#x}, device {device}"
                raise nixl_error(nixlNotFoundError, f"{where}, are not registered as such")
        taken = [(key, section[key].pop()) for key in keys]
        for key in wanted:
            if not section[key]:
                del section[key]
        return taken

    def coverage(self, mem: int) -> Coverage:
        with self._lock:
            if mem not in self._coverage:
                self._coverage[mem] = Coverage(self._regions.get(mem, {}))
            return self._coverage[mem]

    def keys(self) -> dict[int, list[Key]]:
        """What full metadata tells of, by kind of memory."""
        with self._lock:
            return {mem: list(section) for mem, section in self._regions.items() if section}

    def check_registered(self, descs: DescList) -> list[Key]:
        """The ranges, each of which was registered as it is. nixlNotFoundError."""
        keys = _keys(descs)
        with self._lock:
            section = self._regions.get(int(descs._kvx_mem))
            if not section:
                return []
            for key in keys:
                if key not in section:
                    raise nixl_error(
                        nixlNotFoundError,
                        f"{key[1]} bytes at {key[0]:#x} are not registered as such",
                    )
        return keys

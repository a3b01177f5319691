"""The memory that an agent has registered, under NIXL's rules: ranges are counted, not named."""

import logging
import threading
from typing import Any, Literal

from kvxfer import _errors, _kvxfer

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
        # One kvxfer region for each registration; None: of no bytes, of which kvxfer has none.
        self._regions: dict[int, dict[Key, list[Any]]] = {}
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
        done: list[tuple[Key, Any]] = []
        try:
            for key in _keys(descs):
                done.append((key, self._register_one(agent, key, kind)))
        except _errors.Error as error:
            for _, region in done:
                self._forget(agent, region)
            logger.error("memory was not registered: %s", error)
            raise nixl_error(nixlBackendError, str(error)) from error
        with self._lock:
            section = self._regions.setdefault(int(descs._kvx_mem), {})
            for key, region in done:
                section.setdefault(key, []).append(region)
            self._coverage.pop(int(descs._kvx_mem), None)
            self.ever = True

    @staticmethod
    def _register_one(agent: Any, key: Key, kind: _Kind) -> Any:
        address, size, device = key
        if size == 0:
            return None
        # For host memory the device is a label of the caller's, which only Coverage looks at.
        place = device if kind == "cuda" else 0
        return agent.register_memory(_kvxfer.RawMemory(address, size, kind, place))

    @staticmethod
    def _forget(agent: Any, region: Any) -> None:
        if region is not None:
            agent.deregister_memory(region, _PATIENCE)

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
        stuck: list[str] = []
        for key, region in taken:
            try:
                self._forget(agent, region)
            except _errors.Error as error:
                stuck.append(str(error))
                with self._lock:
                    self._regions.setdefault(mem, {}).setdefault(key, []).append(region)
                    self._coverage.pop(mem, None)
        if stuck:
            raise nixl_error(nixlBackendError, "still in use, and registered: " + "; ".join(stuck))

    @staticmethod
    def _take(section: dict[Key, list[Any]], keys: list[Key]) -> list[tuple[Key, Any]]:
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

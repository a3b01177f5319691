"""One agent: a kvxfer agent, and what NIXL's interface knows besides.

nixlAgent (bindings.py) is the face of it, with NIXL's calls; this is what outlives that face in a
listener's thread, and what is closed when it goes. Thread-safe. No lock is held over what waits.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from kvxfer import _errors, _kvxfer

from . import environment, metadata
from .coverage import Coverage, Key
from .dlist import DescList
from .enums import nixl_mem_t
from .errors import (
    from_kvxfer,
    nixl_error,
    nixlBackendError,
    nixlInvalidParamError,
    nixlNotAllowedError,
    nixlNotFoundError,
    nixlNotSupportedError,
)
from .handle_table import NUMBERS
from .host import Host, machine, own_address
from .inbox import Inbox
from .memory import LocalMemory
from .prepared import Pairs, PreparedList, check_lists, pairs_of_lists
from .remotes import Remotes
from .settings import settings_for, warn_of_parameters
from .transfers import Transfer

logger = logging.getLogger("kvxfer.compat.nixl")

# What stands for kvxfer. Which path a peer is reached over is not chosen by these names.
NETWORK_BACKENDS = ("UCX", "UCX_MO", "LIBFABRIC", "MOONCAKE", "UCCL")
# What moves data to and from storage, which kvxfer does not.
STORAGE_BACKENDS = ("GDS", "GDS_MT", "POSIX", "HF3FS", "OBJ", "GUSLI", "AZURE_BLOB", "INFINIA")
MEMORY_KINDS = (nixl_mem_t.DRAM_SEG, nixl_mem_t.VRAM_SEG)

# Who asks whether a transfer is done moves it on itself for at most as long, in seconds: faster
# than waking another thread for it.
_DRIVE = 0.0005


class Engine:
    def __init__(self, name: str) -> None:
        self.name = name
        self.backends: dict[str, int] = {}
        self.memory = LocalMemory()
        self.remotes = Remotes(name)
        self.inbox = Inbox(self.remotes)
        self._deadline = environment.deadline()
        self._agent: Any = None
        self._closed = False
        self._sequence = 0
        # A collected nixlAgent is closed in whatever thread the collector runs, which may be that
        # of a listener, within metadata().
        self._lock = threading.RLock()

    # --- Backends -----------------------------------------------------------------------------
    def create_backend(self, name: str, params: Mapping[str, str]) -> int:
        """Its handle. The first one makes kvxfer's agent, with what ``params`` and UCX's variables
        ask for. nixlNotFoundError: no such plugin; nixlInvalidParamError: created before;
        nixlBackendError: kvxfer's agent could not be made."""
        with self._lock:
            if self._closed:
                raise nixl_error(nixlNotAllowedError, f"agent {self.name!r} was closed")
            if name in self.backends:
                raise nixl_error(nixlInvalidParamError, f"backend {name} was created before")
            if name not in NETWORK_BACKENDS:
                why = "is for storage, which kvxfer does not reach"
                if name not in STORAGE_BACKENDS:
                    why = f"is not one that kvxfer stands for ({', '.join(NETWORK_BACKENDS)})"
                logger.error("backend %s %s", name, why)
                raise nixl_error(nixlNotFoundError, f"backend {name} {why}")
            warn_of_parameters(name, params, too_late=self._agent is not None)
            if self._agent is None:
                self._agent = self._make_agent(name, params)
            self.backends[name] = next(NUMBERS)
            handle = self.backends[name]
        logger.info(
            "agent %s: backend %s is kvxfer %s, which chooses the path to each peer itself and "
            "listens at %s",
            self.name,
            name,
            _kvxfer.__version__,
            self._agent.listen_address or "no address",
        )
        return handle

    def _make_agent(self, backend: str, params: Mapping[str, str]) -> Any:
        host = Host.here()
        settings = settings_for(backend, params, host)
        try:
            return _kvxfer.Agent(self.name, **settings.options(host))
        except _errors.Error as error:
            text = f"{error}{settings.hint()}"
            logger.error("kvxfer's agent could not be made: %s", text)
            raise nixl_error(nixlBackendError, text) from error

    def check_kind(self, mem: nixl_mem_t) -> None:
        """nixlNotFoundError: no backend takes such memory."""
        if not self.backends or mem not in MEMORY_KINDS:
            raise nixl_error(nixlNotFoundError, f"no backend of this agent takes {mem.name}")

    # --- Memory -------------------------------------------------------------------------------
    def register(self, descs: DescList, named_backends: bool) -> None:
        if not named_backends:
            self.check_kind(descs._kvx_mem)
        self.memory.register(self._agent, descs)

    def deregister(self, descs: DescList) -> None:
        self.memory.deregister(self._agent, descs)

    # --- Metadata -----------------------------------------------------------------------------
    def metadata(self) -> bytes:
        if not self.backends:
            raise nixl_error(nixlInvalidParamError, "the agent has no backend to be reached over")
        return self._encode(self.memory.keys(), connection=True)

    def partial_metadata(self, descs: DescList, connection: bool) -> bytes:
        if descs._kvx_count == 0:
            return self._encode({}, connection=True)
        self.check_kind(descs._kvx_mem)
        keys = self.memory.check_registered(descs)
        return self._encode({int(descs._kvx_mem): keys} if keys else {}, connection)

    def _encode(self, sections: dict[int, list[Key]], connection: bool) -> bytes:
        # Both under one lock: a blob with a higher number is never the older one.
        with self._lock:
            self._sequence += 1
            sequence = self._sequence
            blob = self._agent.metadata() if self._agent is not None else b""
        incarnation = self._agent.incarnation if self._agent is not None else ""
        return metadata.encode(
            metadata.Metadata(
                agent=self.name,
                incarnation=incarnation,
                sequence=sequence,
                connection=connection,
                backends=list(self.backends),
                kvxfer=blob,
                sections=sections,
                machine=machine(),
                address=own_address(),
            )
        )

    def load(self, data: bytes) -> str:
        return self.remotes.load(self._agent, self.backends, data)

    def remove(self, name: str) -> bool:
        self.inbox.forget(name)
        return self.remotes.remove(self._agent, name)

    def knows(self, name: str, descs: DescList) -> bool:
        if name == self.name:
            return self.memory.ever and descs._kvx_count == 0
        remote = self.remotes.find(name)
        if remote is None:
            return False
        return descs._kvx_count == 0 or remote.coverage(int(descs._kvx_mem)).covers(descs._kvx_rows)

    def connect(self, name: str) -> None:
        self.inbox.greet(self._agent, self.remotes.get(name))

    # --- Transfers ----------------------------------------------------------------------------
    def _coverage(self, agent: str, mem: nixl_mem_t) -> tuple[Coverage, int]:
        """What is registered there, and the generation that it is of."""
        if agent in ("", self.name):
            if agent and not self.memory.ever:
                raise nixl_error(nixlNotFoundError, "the agent has no memory registered")
            return self.memory.coverage(int(mem)), 0
        remote = self.remotes.get(agent)
        return remote.coverage(int(mem)), remote.generation

    def prepare(self, agent: str, mem: nixl_mem_t, rows: np.ndarray) -> PreparedList:
        """``rows``: (N, 3), or (N, 5) of strips. nixlNotFoundError: memory that is not known."""
        coverage, generation = self._coverage(agent, mem)
        covers = coverage.covers if rows.shape[1] == 3 else coverage.covers_strips
        if not covers(rows):
            raise self._not_covered(agent)
        return PreparedList(agent, generation, mem, rows)

    @staticmethod
    def _not_covered(agent: str) -> Exception:
        whose = f"of agent {agent!r} that is known" if agent else "that is registered here"
        return nixl_error(nixlNotFoundError, f"a descriptor is not within memory {whose}")

    def pairs(self, local: DescList, remote: DescList, agent: str) -> tuple[Pairs, int]:
        """Of two lists, and the generation of ``agent``."""
        ours, theirs = local._kvx_rows, remote._kvx_rows
        check_lists(ours, theirs)
        if not agent:
            raise nixl_error(nixlNotFoundError, "the remote agent's name is empty")
        there, generation = self._coverage(agent, remote._kvx_mem)
        if not self._coverage("", local._kvx_mem)[0].covers(ours):
            raise self._not_covered("")
        if not there.covers(theirs):
            raise self._not_covered(agent)
        return pairs_of_lists(ours, theirs, (local._kvx_mem, remote._kvx_mem)), generation

    def check_generation(self, agent: str, generation: int) -> None:
        """nixlNotFoundError: it was removed since."""
        if agent != self.name and self.remotes.get(agent).generation != generation:
            raise nixl_error(
                nixlNotFoundError, f"agent {agent!r} was removed and added again meanwhile"
            )

    def new_transfer(
        self, write: bool, agent: str, generation: int, pairs: Pairs, message: bytes, merge: bool
    ) -> Transfer:
        self.check_generation(agent, generation)
        self.inbox.check(message)
        if agent == self.name and pairs.mems != (nixl_mem_t.DRAM_SEG, nixl_mem_t.DRAM_SEG):
            raise nixl_error(
                nixlNotSupportedError, "an agent copies within itself in host memory only"
            )
        transfer = Transfer(write, agent, generation, pairs, message, merge)
        remote = self.remotes.find(agent)
        transfer.hint = remote.hint if remote is not None else ""
        return transfer

    def post(self, transfer: Transfer, message: bytes) -> bool:
        """Whether it is done already. NIXL's error for its end otherwise."""
        self.check_generation(transfer.peer, transfer.generation)
        transfer.check_can_post()
        message = transfer.take_message(message)
        if transfer.peer == self.name:
            transfer.copy(self.memory)
            if message:
                self.inbox.tell_self(message)
            return True
        last = None
        if message:
            try:
                last = self.inbox.send_before(self._agent, transfer.peer, message, self._deadline)
            except _errors.Error as error:
                transfer.refuse(error)
                raise from_kvxfer(error, transfer.hint) from error
        transfer.post(self._agent, last, self._deadline)
        return self._is_done(transfer, 0.0)

    def is_done(self, transfer: Transfer) -> bool:
        if transfer.is_under_way() and self.remotes.find(transfer.peer) is None:
            raise nixl_error(nixlNotFoundError, f"agent {transfer.peer!r} was removed meanwhile")
        return self._is_done(transfer, _DRIVE)

    def _is_done(self, transfer: Transfer, drive: float) -> bool:
        if not transfer.is_done(drive):
            return False
        remote = self.remotes.find(transfer.peer)
        if remote is not None and not remote.path_said:
            remote.path_said = True
            logger.info(
                "agent %s reaches agent %s over %s", self.name, remote.name, transfer.path()
            )
        return True

    def estimate(self, transfer: Transfer) -> tuple[int, int]:
        """Microseconds, and how far they may be off; zeros where nothing was measured yet."""
        self.check_generation(transfer.peer, transfer.generation)
        if transfer.peer == self.name:
            return 0, 0
        try:
            paths = self._agent.explain(transfer.peer).paths
        except _errors.Error:
            return 0, 0
        chosen = next((path for path in paths if path.chosen), None)
        if chosen is None or chosen.bytes_per_second <= 0:
            return 0, 0
        seconds = transfer.pairs.bytes / chosen.bytes_per_second + chosen.latency
        return int(seconds * 1e6), int(chosen.latency * 1e6)

    # --- Notifications ------------------------------------------------------------------------
    def _check_backends(self) -> None:
        if not self.backends:
            raise nixl_error(nixlBackendError, "the agent has no backend for notifications")

    def notify(self, agent: str, message: bytes) -> None:
        self._check_backends()
        if agent == self.name:
            self.inbox.tell_self(message)
        else:
            self.inbox.send(self._agent, self.remotes.get(agent), message, self._deadline)

    def take_notifications(self, into: dict[str, list[bytes]]) -> None:
        self._check_backends()
        self.inbox.take(self.name, self._agent, into)

    # --- The end ------------------------------------------------------------------------------
    def close(self) -> None:
        """Ends every transfer. Idempotent."""
        with self._lock:
            self._closed = True
            agent = self._agent
        if agent is not None:
            agent.close()

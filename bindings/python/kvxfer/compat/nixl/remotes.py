"""What an agent knows of others: under which incarnation, and which of their memory."""

import itertools
import logging
import threading
from typing import Any

from kvxfer import _errors

from . import host, metadata
from .coverage import Coverage, Key
from .errors import (
    nixl_error,
    nixlBackendError,
    nixlInvalidParamError,
    nixlNotAllowedError,
    nixlNotFoundError,
)
from .logs import warn_once
from .reach import cannot_connect, only_on_loopback, remedy_there

logger = logging.getLogger("kvxfer.compat.nixl")


class Remote:
    """One remote agent, from the loading of its metadata to its removal."""

    _generations = itertools.count(1)

    def __init__(self, name: str, incarnation: str) -> None:
        self.name = name
        self.incarnation = incarnation
        self.generation = next(Remote._generations)
        """What was prepared for an earlier one of the same name is void."""
        self.sequence = -1
        self.lost = ""
        """Why it is believed to be gone; empty: it is not."""
        self.path_said = False
        self.hint = ""
        """Why it may not be able to connect to this agent; for errors of transfers."""
        self._keys: dict[int, set[Key]] = {}
        self._coverage: dict[int, Coverage] = {}
        self._lock = threading.RLock()

    def add(self, sections: dict[int, list[Key]]) -> None:
        with self._lock:
            for mem, keys in sections.items():
                self._keys.setdefault(mem, set()).update(keys)
                self._coverage.pop(mem, None)

    def coverage(self, mem: int) -> Coverage:
        with self._lock:
            if mem not in self._coverage:
                self._coverage[mem] = Coverage(self._keys.get(mem, ()))
            return self._coverage[mem]


class Remotes:
    """Thread-safe. A kvxfer agent is given by the caller, for it comes with the first backend."""

    def __init__(self, own_name: str) -> None:
        self._own_name = own_name
        self._by_name: dict[str, Remote] = {}
        self._lock = threading.RLock()  # of the dict
        self._loading = threading.RLock()  # one load or removal at a time

    def find(self, name: str) -> Remote | None:
        with self._lock:
            return self._by_name.get(name)

    def get(self, name: str) -> Remote:
        """nixlNotFoundError: not known."""
        remote = self.find(name)
        if remote is None:
            raise nixl_error(nixlNotFoundError, f"no metadata of agent {name!r} was loaded")
        return remote

    def load(self, agent: Any, backends: dict[str, int], data: bytes) -> str:
        """Makes it known, or adds to what is known of it; its name.

        nixlMismatchError, nixlInvalidParamError (one's own), nixlNotAllowedError (another
        incarnation is known), nixlNotFoundError (partial, of an agent that is not known),
        nixlBackendError (cannot be reached from here)."""
        blob = metadata.decode(data)
        if blob.agent == self._own_name:
            raise nixl_error(nixlInvalidParamError, "the metadata is of this agent itself")
        with self._loading:
            known = self.find(blob.agent)
            self._check(blob, known, backends)
            remote = known or Remote(blob.agent, blob.incarnation)
            if blob.sequence > remote.sequence:
                self._look_at_reach(agent, blob, remote)
                self._tell_kvxfer(agent, blob)
                remote.sequence = blob.sequence
            remote.add(blob.sections)
            with self._lock:
                self._by_name[blob.agent] = remote
        return blob.agent

    @staticmethod
    def _check(blob: metadata.Metadata, known: Remote | None, backends: dict[str, int]) -> None:
        if not backends or (blob.connection and not blob.backends):
            raise nixl_error(nixlBackendError, "one of the two agents has no backend")
        if known is not None and known.incarnation != blob.incarnation:
            raise nixl_error(
                nixlNotAllowedError,
                f"agent {blob.agent!r} restarted; remove it before its new metadata is added",
            )
        if known is None and not blob.connection:
            raise nixl_error(
                nixlNotFoundError,
                f"partial metadata of agent {blob.agent!r}, which is not known yet; "
                "make the first with inc_conn_info=True",
            )

    @staticmethod
    def _tell_kvxfer(agent: Any, blob: metadata.Metadata) -> None:
        try:
            agent.add_peer(blob.kvxfer)
        except _errors.Error as error:
            text = f"agent {blob.agent!r} cannot be reached: {error}"
            if "loopback" in text:
                text += f"; {remedy_there(blob.agent, blob.address)}"
            logger.error(text)
            raise nixl_error(nixlBackendError, text) from error

    @staticmethod
    def _look_at_reach(agent: Any, blob: metadata.Metadata, remote: Remote) -> None:
        """Metadata of an older drop-in does not say where it is from."""
        if not blob.machine or blob.machine == host.machine():
            return
        address = only_on_loopback(agent)
        if address:
            remote.hint = cannot_connect(remote.name, address)
            warn_once(f"loopback {address}", remote.hint)

    def remove(self, agent: Any, name: str) -> bool:
        """False: it was not known."""
        with self._loading:
            with self._lock:
                if self._by_name.pop(name, None) is None:
                    return False
            try:
                agent.remove_peer(name)
            except _errors.Error as error:
                logger.debug("removing agent %s: %s", name, error)
            return True

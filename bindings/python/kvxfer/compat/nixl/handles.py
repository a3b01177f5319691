"""What nixl_agent gives out for a prepared list and for a transfer.

Released once by hand, or when the last reference goes. Where kvxfer's agent is closed already there
is nothing left to release.
"""

import logging
from typing import Any

from .agent import nixlAgent

logger = logging.getLogger("kvxfer.compat.nixl")


class _Handle:
    __slots__ = ("_handle", "_agent", "_released", "__weakref__")

    def __init__(self, agent: nixlAgent, value: int) -> None:
        self._handle = int(value)
        self._agent = agent
        self._released = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(0x{self._handle:x}, released={self._released})"

    def release(self) -> None:
        """Nothing, the second time."""
        if not self._released:
            self._give_back()
            self._released = True

    def _give_back(self) -> None:
        raise NotImplementedError

    def _finalise(self) -> None:
        self._give_back()

    def __del__(self) -> None:
        # Of an object whose constructor failed, and at exit, anything may be missing.
        if getattr(self, "_released", True):
            return
        try:
            self._finalise()
        except Exception as error:
            try:
                logger.debug("%r was not released: %s", self, error)
            except Exception:
                pass


class nixl_prepped_dlist_handle(_Handle):
    """A list from nixl_agent.prep_xfer_dlist."""

    __slots__ = ()

    def _give_back(self) -> None:
        self._agent.releasedDlistH(self._handle)


class nixl_xfer_handle(_Handle):
    """A transfer. ``release`` of one under way cancels it, and raises nixlRepostActiveError where
    bytes of it may still move; call it again then."""

    __slots__ = ()

    def _give_back(self) -> None:
        self._agent.releaseXferReq(self._handle)

    def _finalise(self) -> None:
        forget: Any = self._agent._abandon
        forget(self._handle)

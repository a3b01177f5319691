"""Releases that came before the lease that they are for: decode may hear of a request, and be done with
it, before prefill's worker hears of it at all."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

_MOST = 4096
_MOST_OF_PEER = 512
# A worker may be in a very long step meanwhile: an unchunked prompt, a compilation.
_KEPT_S = 600.0


class EarlyReleases:
    """By transfer, for ``_KEPT_S`` seconds; of one peer at most ``_MOST_OF_PEER``, and ``_MOST`` in all:
    beyond that the oldest go, of the peer that has the most. It is the peer's that was the first to
    release it: no other can have it forgotten. Any thread.

    A release is added before the leases are looked at, and a lease is entered before ``take`` looks
    here: so one of the two sees the other."""

    def __init__(self, kept: float = _KEPT_S) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._until: OrderedDict[str, tuple[str, float]] = OrderedDict()  # by transfer; oldest first
        self._by_peer: dict[str, OrderedDict[str, None]] = {}  # transfers; oldest first

    def add(self, peer: str, transfer: str) -> None:
        with self._lock:
            self._forget_old()
            if transfer in self._until:
                return
            self._until[transfer] = peer, time.monotonic() + self._kept
            of_peer = self._by_peer.setdefault(peer, OrderedDict())
            of_peer[transfer] = None
            if len(of_peer) > _MOST_OF_PEER:
                self._remove(next(iter(of_peer)))
            elif len(self._until) > _MOST:
                self._remove(next(iter(max(self._by_peer.values(), key=len))))

    def take(self, transfer: str) -> bool:
        """Whether it was released. It is forgotten then: a transfer is granted once."""
        with self._lock:
            self._forget_old()
            return self._remove(transfer)

    def has(self, transfer: str) -> bool:
        with self._lock:
            self._forget_old()
            return transfer in self._until

    def __len__(self) -> int:
        return len(self._until)

    def _forget_old(self) -> None:
        now = time.monotonic()
        while self._until and next(iter(self._until.values()))[1] < now:
            self._remove(next(iter(self._until)))

    def _remove(self, transfer: str) -> bool:
        if transfer not in self._until:
            return False
        peer, _ = self._until.pop(transfer)
        of_peer = self._by_peer[peer]
        del of_peer[transfer]
        if not of_peer:
            del self._by_peer[peer]
        return True

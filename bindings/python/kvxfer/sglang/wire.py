"""What the ranks of prefill and decode tell each other over their agents' notifications.

Small JSON objects (kvxfer.vllm.messages). From decode: "hello" (its layout and metadata), "want" (where
a request goes), "abort", "keep" (it still waits for these). From prefill: "welcome", "refused", "ended"
(it writes nothing more of a request). And each write brings its place among those of the request.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import kvxfer
from kvxfer.sglang.layout import Layout, whole
from kvxfer.sglang.log import logger, shown
from kvxfer.vllm.messages import encode

VERSION = 1
KEEP_S = 2.0
"""Decode says so often that it still waits."""
SILENT_S = 10.0
"""Prefill begins no write of a request of which decode has not said for so long that it waits for it."""
TELL_S = 3.0
"""A message that has not been brought by then is not brought at all."""

_PART = struct.Struct("<4sQII")
_MAGIC = b"kvsp"
_MAX_NUMBER = (1 << 63) - 1
_MAX_WHY = 1000

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Of the writes for one request, this is number ``index``; ``total``: how many there are, where it
    is the last; else 0."""

    request: int
    index: int
    total: int

    def encode(self) -> bytes:
        return _PART.pack(_MAGIC, self.request, self.index, self.total)

    @staticmethod
    def of(payload: bytes) -> Part | None:
        """None: it is none."""
        if len(payload) != _PART.size or payload[:4] != _MAGIC:
            return None
        return Part(*_PART.unpack(payload)[1:])


@dataclass(frozen=True)
class Want:
    """``request``: a number that decode gives each of its attempts, and never twice."""

    request: int
    room: int
    pages: Ids
    aux: int
    states: tuple[Ids, ...]
    prefix: int
    """Tokens that decode has already."""
    ranks: int
    """Of decode that ask the same rank of prefill for parts of this request."""
    dummy: bool
    """Nothing is to be written: another rank has the same."""

    def message(self) -> dict[str, Any]:
        return {
            "do": "want",
            "request": self.request,
            "room": self.room,
            "pages": _packed(self.pages),
            "aux": self.aux,
            "states": [_packed(each) for each in self.states],
            "prefix": self.prefix,
            "ranks": self.ranks,
            "dummy": self.dummy,
        }

    @staticmethod
    def of(message: dict[str, Any], layout: Layout) -> Want:
        """ValueError: it is none, or not within the buffers of ``layout``."""
        states = message.get("states")
        if not isinstance(states, list) or len(states) != len(layout.states):
            raise ValueError("states that decode does not have")
        return Want(
            request=number(message, "request"),
            room=number(message, "room"),
            pages=_unpacked(message.get("pages"), layout.pages()),
            aux=whole(
                message.get("aux"), 0, min((each.count for each in layout.aux), default=1) - 1
            ),
            states=tuple(
                _unpacked(each, min((entry.count for entry in state.entries), default=0))
                for each, state in zip(states, layout.states, strict=True)
            ),
            prefix=number(message, "prefix"),
            ranks=whole(message.get("ranks"), 1, 1 << 20),
            dummy=message.get("dummy") is True,
        )


def number(message: dict[str, Any], field: str) -> int:
    """ValueError."""
    return whole(message.get(field), 0, _MAX_NUMBER)


def why_of(message: dict[str, Any]) -> str:
    return shown(message.get("why", "it does not say why"), _MAX_WHY)


def packed_bytes(content: bytes) -> str:
    return base64.b64encode(content).decode()


def unpacked_bytes(text: Any) -> bytes:
    """ValueError."""
    if not isinstance(text, str):
        raise ValueError("no bytes")
    return base64.b64decode(text, validate=True)


def indices(given: Any) -> Ids:
    """Those that SGLang gives: an array, a list, None."""
    return np.asarray([] if given is None else given, dtype=np.int64).ravel()


def tell(
    agent: kvxfer.Agent, peer: str, message: dict[str, Any], words: Iterable[int] = ()
) -> Exception | None:
    """Does not wait. ``words``: its pieces end with these. What went wrong at once: then the peer does
    not get it."""
    given: Iterator[int] = iter(words)
    try:
        for piece in encode(message):
            agent.notify(peer, piece, deadline=TELL_S, user_word=next(given, None))
    except (kvxfer.Error, ValueError) as error:
        logger.debug("kvxfer: %s was not told %s: %s", shown(peer), message["do"], shown(error))
        return error
    return None


def _packed(ids: Ids) -> str:
    return packed_bytes(np.ascontiguousarray(ids, dtype="<u4").tobytes())


def _unpacked(text: Any, below: int) -> Ids:
    content = unpacked_bytes(text)
    if len(content) % 4 or len(content) // 4 > below:
        raise ValueError(f"{len(content)} bytes of indices below {below}")
    ids = np.frombuffer(content, dtype="<u4").astype(np.int64)
    if len(ids) and int(ids.max()) >= below:
        raise ValueError(f"index {int(ids.max())} of {below}")
    if len(np.unique(ids)) != len(ids):
        raise ValueError("an index twice")
    return ids

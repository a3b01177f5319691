"""What connectors tell each other over their agents' notifications: small JSON objects, in pieces
where one is larger than a notification. What comes in is never trusted to be well formed."""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

_MAGIC = b"kvc1"
_PIECE_BYTES = 60_000
_MAX_PIECES = 64
_MAX_BYTES = 16 << 20  # unpacked
_MAX_PARTIAL = 256


def encode(message: dict[str, Any]) -> list[bytes]:
    """ValueError: it is larger than peers take."""
    body = zlib.compress(json.dumps(message, separators=(",", ":")).encode(), 1)
    pieces = range(0, len(body), _PIECE_BYTES)
    if len(pieces) > _MAX_PIECES:
        raise ValueError(f"a message of {len(body)} bytes is larger than peers take")
    key = os.urandom(8)
    return [
        _MAGIC + key + bytes([index, len(pieces)]) + body[at : at + _PIECE_BYTES]
        for index, at in enumerate(pieces)
    ]


class Reader:
    """Of one agent's notifications."""

    def __init__(self) -> None:
        self._partial: dict[tuple[str, bytes], dict[int, bytes]] = {}

    def read(self, peer: str, payload: bytes) -> dict[str, Any] | None:
        """The message that is whole with this piece; None: it is not yet. ValueError: it is none."""
        if len(payload) < 14 or payload[:4] != _MAGIC:
            raise ValueError("no piece of a message")
        key, index, count = payload[4:12], payload[12], payload[13]
        if not 0 < count <= _MAX_PIECES or index >= count:
            raise ValueError("a piece that is none of its message")
        pieces = self._partial.setdefault((peer, key), {})
        pieces[index] = payload[14:]
        if len(pieces) < count:
            while len(self._partial) > _MAX_PARTIAL:  # of peers that died in the middle
                self._partial.pop(next(iter(self._partial)))
            return None
        del self._partial[(peer, key)]
        return _unpack(b"".join(pieces[each] for each in sorted(pieces)))


def _unpack(body: bytes) -> dict[str, Any]:
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(body, _MAX_BYTES)
        message = json.loads(text) if not unpacking.unconsumed_tail else None
    except (zlib.error, ValueError, RecursionError) as error:
        raise ValueError(f"a message that cannot be read: {error}") from error
    if not isinstance(message, dict):
        raise ValueError("a message that is no object, or too large")
    return message

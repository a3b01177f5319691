"""Notifications on their way: NIXL's have no limit in length, kvxfer's are of at most 64 KiB.

What fits is sent as it is. What does not is sent in parts, each with a header; a message that
begins as a header does is sent as one part. Parts of one message come in order, for kvxfer keeps
the order of posting.
"""

import itertools
import struct
from collections import OrderedDict

_MAGIC = b"\xffkvxnixl"
_HEADER = struct.Struct("<8sBIIQ")  # magic, kind, part, parts, message
_PART, _GREETING = 1, 2
_MOST_BYTES = 64 * 1024
_ROOM = _MOST_BYTES - _HEADER.size

MOST_MESSAGE_BYTES = 64 << 20
_MOST_PARTS = -(-MOST_MESSAGE_BYTES // _ROOM)
# Messages of one sender of which the last part has not come: one for each of its threads, and
# those of transfers that failed.
_MOST_OPEN = 64


class Splitter:
    """What is sent for one message. Thread-safe."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def split(self, message: bytes) -> list[bytes]:
        if len(message) <= _MOST_BYTES and not message.startswith(_MAGIC):
            return [message]
        number = next(self._numbers)
        parts = max(1, -(-len(message) // _ROOM))
        return [
            _HEADER.pack(_MAGIC, _PART, i, parts, number) + message[i * _ROOM : (i + 1) * _ROOM]
            for i in range(parts)
        ]

    @staticmethod
    def greeting() -> bytes:
        """A notification that only makes the connection; the other side does not hand it out."""
        return _HEADER.pack(_MAGIC, _GREETING, 0, 0, 0)


class Joiner:
    """The messages of what came. One thread at a time."""

    def __init__(self) -> None:
        # By sender, and by number: the parts so far. Nothing empty is kept.
        self._open: dict[tuple[str, str], OrderedDict[int, list[bytes]]] = {}

    def join(self, name: str, incarnation: str, payload: bytes) -> bytes | None:
        """What came of the sender. None: it was a greeting, or more is to come."""
        if not payload.startswith(_MAGIC) or len(payload) < _HEADER.size:
            return payload
        _, kind, part, parts, number = _HEADER.unpack_from(payload)
        if kind != _PART:
            return None
        if parts == 1:
            return payload[_HEADER.size :]
        begun = self._open.setdefault((name, incarnation), OrderedDict())
        message = self._add(begun, number, part, parts, payload)
        if not begun:
            del self._open[name, incarnation]
        return message

    @staticmethod
    def _add(
        begun: OrderedDict[int, list[bytes]], number: int, part: int, parts: int, payload: bytes
    ) -> bytes | None:
        so_far = begun.pop(number, [])
        if len(so_far) != part or parts > _MOST_PARTS:
            return None
        so_far.append(payload[_HEADER.size :])
        if part + 1 == parts:
            return b"".join(so_far)
        begun[number] = so_far
        while len(begun) > _MOST_OPEN or sum(map(len, begun.values())) > 2 * _MOST_PARTS:
            begun.popitem(last=False)
        return None

    def forget(self, name: str) -> None:
        """What senders of that name left unfinished."""
        for sender in [sender for sender in self._open if sender[0] == name]:
            del self._open[sender]

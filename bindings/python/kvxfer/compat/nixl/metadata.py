"""An agent's metadata: what kvxfer needs to reach it, and what NIXL's interface asks of it.

kvxfer's own metadata is opaque and complete. Around it goes a list of the descriptors that this
blob tells of, so that partial metadata means what it does in NIXL: memory is known to the other
side once its descriptors were in a blob, although kvxfer could reach it before.
"""

import json
import struct
import zlib
from dataclasses import dataclass, field

import numpy as np

from .coverage import Key
from .errors import nixl_error, nixlMismatchError

_MAGIC = b"kvxnixl1"
_FRAME = struct.Struct("<8sQI")  # magic, bytes of the body, their CRC-32
_HEAD = struct.Struct("<I")  # bytes of the JSON head
MOST_BYTES = 256 << 20
# What reading a body of wrong form raises; OverflowError, for one, where a number is Infinity.
_DAMAGE = (OverflowError, LookupError, ValueError, TypeError, RecursionError, struct.error)


@dataclass
class Metadata:
    agent: str
    incarnation: str
    sequence: int
    """Rises with each blob of an incarnation: kvxfer must not be given an older one later."""
    connection: bool
    """Whether it makes its agent reachable, or only adds to what is known of it."""
    backends: list[str]
    kvxfer: bytes
    sections: dict[int, list[Key]] = field(default_factory=dict)
    """By kind of memory (a number of nixl_mem_t)."""
    machine: str = ""
    """host.machine() of its agent. Empty: the drop-in there is an older one."""
    address: str = ""
    """Of the host, by its default route: what its agent could listen on. Empty: not known."""


def encode(metadata: Metadata) -> bytes:
    rows = [
        np.array(keys, dtype="<u8").reshape(-1, 3).tobytes() for keys in metadata.sections.values()
    ]
    head = json.dumps(
        {
            "agent": metadata.agent,
            "incarnation": metadata.incarnation,
            "sequence": metadata.sequence,
            "connection": metadata.connection,
            "backends": metadata.backends,
            "machine": metadata.machine,
            "address": metadata.address,
            "sections": [[mem, len(keys)] for mem, keys in metadata.sections.items()],
        }
    ).encode()
    body = b"".join([_HEAD.pack(len(head)), head, *rows, metadata.kvxfer])
    return _FRAME.pack(_MAGIC, len(body), zlib.crc32(body)) + body


def _refuse(why: str) -> Exception:
    return nixl_error(nixlMismatchError, why)


def _what_it_is(data: bytes) -> str:
    if data.startswith(b"nixlSerDes"):
        return (
            "the metadata is of NIXL itself; both sides have to run with kvxfer's drop-in "
            "(python -m kvxfer.compat.nixl -- COMMAND)"
        )
    if data.startswith(_MAGIC[:-1]):
        return (
            f"the metadata is of version {data[7:8].decode(errors='replace')} of kvxfer's drop-in, "
            f"and this is version {_MAGIC[7:].decode()}; install the same kvxfer on both sides"
        )
    return f"{len(data)} bytes that are not metadata of an agent"


def decode(data: bytes) -> Metadata:
    """nixlMismatchError says what the bytes are instead. What comes after the blob is ignored."""
    if len(data) < len(_MAGIC) or not data.startswith(_MAGIC):
        raise _refuse(_what_it_is(data))
    if len(data) < _FRAME.size:
        raise _refuse(f"the metadata is cut off after {len(data)} bytes")
    _, size, checksum = _FRAME.unpack_from(data)
    body = data[_FRAME.size : _FRAME.size + size]
    if size > MOST_BYTES or len(body) < size:
        raise _refuse(f"the metadata is cut off: {len(body)} of {size} bytes")
    if zlib.crc32(body) != checksum:
        raise _refuse("the metadata is damaged: its checksum is wrong")
    try:
        return _decode_body(body)
    except _DAMAGE as error:
        raise _refuse(f"the metadata is damaged: {error!r}") from None


def _decode_body(body: bytes) -> Metadata:
    (head_bytes,) = _HEAD.unpack_from(body)
    at = _HEAD.size + head_bytes
    head = json.loads(body[_HEAD.size : at])
    sequence = head["sequence"]
    if type(sequence) is not int or not 0 <= sequence < 2**63:
        raise ValueError("the sequence is not an integer from 0 to 2^63 - 1")
    sections: dict[int, list[Key]] = {}
    for mem, count in head["sections"]:
        if count < 0:
            raise ValueError(f"a section of {count} ranges")
        rows = np.frombuffer(body[at : at + 24 * count], dtype="<u8").reshape(count, 3)
        sections[int(mem)] = [tuple(row) for row in rows.tolist()]
        at += 24 * count
    return Metadata(
        agent=str(head["agent"]),
        incarnation=str(head["incarnation"]),
        sequence=sequence,
        connection=bool(head["connection"]),
        backends=[str(name) for name in head["backends"]],
        kvxfer=body[at:],
        sections=sections,
        machine=str(head.get("machine", "")),
        address=str(head.get("address", "")),
    )

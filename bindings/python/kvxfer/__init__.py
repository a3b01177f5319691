"""kvxfer moves KV-cache blocks between LLM inference workers.

    import kvxfer, numpy

    cache = numpy.zeros((4096, 32768), numpy.uint8)      # or torch, or kvxfer.HostBuffer
    with kvxfer.Agent("prefill-0") as agent:
        agent.register_memory(cache)
        peer = agent.add_peer(metadata_of_decode)        # its agent.metadata()
        transfer = agent.write(peer, kvxfer.PagedRegion.of(cache), their_region, my_ids, their_ids,
                               notification=b"request 7", deadline=2)
        transfer.wait()                                  # or: await transfer

    # on the decode worker
    told = agent.wait_notification(timeout=5)            # or: async for told in agent.notifications()

What may be relied on is the same as in C++ (docs/architecture.md): a notification comes after all of
its bytes, once; every transfer ends, with a cause, by its deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvxfer._errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    Closed,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    LeaseRefused,
    NotFound,
    PeerLost,
    PermissionDenied,
    ResourceExhausted,
    StillActive,
    TimedOut,
    Unimplemented,
)

if TYPE_CHECKING:
    from kvxfer._kvxfer import (
        Agent,
        Explanation,
        HostBuffer,
        KvCounts,
        KvEvent,
        KvLayout,
        KvModel,
        KvShard,
        KvTensor,
        Notification,
        PagedRegion,
        PathExplanation,
        PeerEvent,
        PeerRegion,
        PreparedBlocks,
        QuiesceResult,
        RailExplanation,
        RawMemory,
        ReadyFlag,
        Region,
        Transfer,
        TransferEnd,
        TransferStats,
        __version__,
        fetch_metadata,
        ranks_to_read,
        ranks_to_write,
        set_log_level,
    )

__all__ = [
    "Aborted",
    "Agent",
    "AlreadyExists",
    "Cancelled",
    "Closed",
    "DeadlineExceeded",
    "Error",
    "Explanation",
    "FailedPrecondition",
    "HostBuffer",
    "Internal",
    "InvalidArgument",
    "KvCounts",
    "KvEvent",
    "KvLayout",
    "KvModel",
    "KvShard",
    "KvTensor",
    "LeaseRefused",
    "NotFound",
    "Notification",
    "PagedRegion",
    "PathExplanation",
    "PeerEvent",
    "PeerLost",
    "PeerRegion",
    "PermissionDenied",
    "PreparedBlocks",
    "QuiesceResult",
    "RailExplanation",
    "RawMemory",
    "ReadyFlag",
    "Region",
    "ResourceExhausted",
    "StillActive",
    "TimedOut",
    "Transfer",
    "TransferEnd",
    "TransferStats",
    "Unimplemented",
    "__version__",
    "fetch_metadata",
    "ranks_to_read",
    "ranks_to_write",
    "set_log_level",
]


# What is not an error.
_COMPILED = [name for name in __all__ if name not in globals()]


def __getattr__(name: str) -> Any:
    """The compiled part, when something of it is first asked for: the program and the plots do
    without."""
    if name not in __all__:
        raise AttributeError(f"module 'kvxfer' has no attribute {name!r}")
    from kvxfer import _kvxfer

    globals().update({each: getattr(_kvxfer, each) for each in _COMPILED})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

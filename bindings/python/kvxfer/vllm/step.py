"""What the scheduler's half of the connector tells the workers' half, with each step of the engine, and
what it hears from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from kvxfer.vllm.division import Division
from kvxfer.vllm.reference import GroupBlocks, Reference, Worker


@dataclass
class WorkerAddress(KVConnectorHandshakeMetadata):
    """Of one worker, for the references that its scheduler makes; all but ``worker`` is the same for
    each."""

    worker: Worker
    kernel_block_tokens: list[int]
    """Of each group. Block ids between engines are of kernels' blocks."""
    division: Division
    factors: dict[str, Any]
    """Of the fingerprint, those that only workers know."""


@dataclass(frozen=True)
class Part:
    """Of one group: tokens ``first`` to ``last`` of the request go into, or come out of, these blocks."""

    blocks: GroupBlocks
    first: int
    last: int


@dataclass(frozen=True)
class Fetch:
    """Decode, pull."""

    request: str
    contents: str
    reference: Reference
    parts: tuple[Part, ...]

    @property
    def lease(self) -> str:
        return self.reference.transfer


@dataclass(frozen=True)
class Offer:
    """Decode, push: room for what prefill writes."""

    request: str
    contents: str
    reference: Reference
    parts: tuple[Part, ...]
    decode: tuple[Worker, ...]
    """All workers of this engine, into which prefill writes."""
    division: Division
    """Of this engine."""
    block_tokens: tuple[int, ...]
    """Of this engine's groups."""

    @property
    def lease(self) -> str:
        return self.reference.transfer


@dataclass(frozen=True)
class GivenUp:
    """Decode: a request that was aborted while it loaded. ``keeps_lease``: another one reads the blocks."""

    request: str
    keeps_lease: bool = False


@dataclass(frozen=True)
class Returned:
    """Decode: of this lease nothing (more) is read here, or is to be written."""

    lease: str
    workers: tuple[Worker, ...]
    division: Division | None
    """Of the engine that has it; None: not known."""


@dataclass(frozen=True)
class Held:
    """Prefill, pull: blocks that decode may read, if it has the same ``contents``. They are computed when
    the step is. ``confirmed``: the scheduler waits until nobody reads them; else it says so later, or
    drops the lease."""

    request: str
    lease: str
    contents: str
    groups: tuple[GroupBlocks, ...]
    confirmed: bool


@dataclass(frozen=True)
class Expected:
    """Prefill, push: a request that is being computed, and what decode must know of it."""

    lease: str
    contents: str


@dataclass(frozen=True)
class Write:
    """Prefill, push: tokens ``first`` to ``last`` of a request. ``computing``: they become so in this
    step, layer by layer."""

    request: str
    lease: str
    number: int
    groups: tuple[GroupBlocks, ...]
    first: int
    last: int
    computing: bool
    final: bool


@dataclass(frozen=True)
class Abandoned:
    """Prefill, push: of this lease nothing (more) is written. ``held``: the scheduler keeps the blocks
    until it is told that nothing reads them any more."""

    request: str
    lease: str
    why: str
    held: bool


@dataclass
class Step(KVConnectorMetadata):
    # Decode.
    fetches: list[Fetch] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Requests whose load fails at once, and why."""
    failed: dict[str, str] = field(default_factory=dict)
    """Requests whose load is under way and must fail, and why."""
    given_up: list[GivenUp] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    wanted: list[Reference] = field(default_factory=list)
    """Leases that are to be renewed."""
    # Prefill.
    held: list[Held] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    """Leases of earlier steps whose names were handed out."""
    dropped: list[str] = field(default_factory=list)
    """Leases whose names nobody has heard, and nobody will."""
    revoked: list[str] = field(default_factory=list)
    """Leases whose blocks are used for others from this step on, whoever reads them."""
    expected: list[Expected] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    abandoned: list[Abandoned] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    """Requests whose blocks are used for others from this step on."""


@dataclass
class Heard(KVConnectorWorkerMetadata):
    """What the workers know first."""

    # Prefill: what decode engines said to every worker, by lease.
    offered: dict[str, int] = field(default_factory=dict)
    """How many workers have the whole of an offer."""
    renewed: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)
    # Decode.
    unsettled: dict[str, int] = field(default_factory=dict)
    """By request, how many more workers than before have ended it without knowing that prefill
    writes no more into its blocks."""
    unsent: int = 0
    """How many more messages than before wait until their receiver is met."""

    def __bool__(self) -> bool:
        return bool(
            self.offered or self.renewed or self.withdrawn or self.unsettled or self.unsent
        )

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Heard:
        assert isinstance(other, Heard)
        return Heard(
            _sums(self.offered, other.offered),
            self.renewed | other.renewed,
            self.withdrawn | other.withdrawn,
            _sums(self.unsettled, other.unsettled),
            self.unsent + other.unsent,
        )


def _sums(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in one.keys() | other.keys()}

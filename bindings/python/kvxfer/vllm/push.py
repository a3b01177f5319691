"""Prefill, push: what is known of one request that is written, or may be."""

from __future__ import annotations

from dataclasses import dataclass, field

import kvxfer
from kvxfer.vllm.division import Division
from kvxfer.vllm.outbox import Sender
from kvxfer.vllm.reference import Worker
from kvxfer.vllm.step import Part


@dataclass
class Offer:
    """Room of a decode engine."""

    contents: str  # what its prompt is, as contents_of
    workers: tuple[Worker, ...]
    division: Division
    targets: frozenset[int]  # numbers of the workers that this one writes to, or whom it answers
    parts: list[Part]
    block_tokens: list[int]
    seconds: float  # how long it holds, unless decode says that it still does
    begun: float
    until: float
    senders: dict[int, Sender] = field(default_factory=dict)  # by number, workers that have made it
    names: dict[int, str] = field(default_factory=dict)  # by number, of the targets, once met
    met: bool = False

    @property
    def whole(self) -> bool:
        """A worker that has not made it may not be met yet, or have turned away."""
        return self.senders.keys() >= self.targets


@dataclass
class Push:
    """From when its request is computed until nothing reads its blocks any more."""

    contents: str = ""
    request: str = ""
    offer: Offer | None = None
    reported: bool = False  # to the scheduler, that there is one
    transfers: list[kvxfer.Transfer] = field(default_factory=list)
    unposted: int = 0  # layers that have not been computed yet
    last_write: bool = False
    abandoned: str = ""
    held: bool = False

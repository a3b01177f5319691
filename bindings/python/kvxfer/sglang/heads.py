"""Which heads of a KV cache one rank of prefill writes for one rank of decode."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadRange:
    """``count`` heads: from ``source`` on of the writer's, from ``target`` on of the other's."""

    source: int
    target: int
    count: int


def heads_of(total: int, rank: int, size: int) -> range:
    """Of the model's ``total`` KV heads those that a rank has. Where there are more ranks than heads,
    neighbours have the same one. ValueError: they cannot be shared out evenly."""
    if total < 1 or (total % size and size % total):
        raise ValueError(f"{total} KV heads do not go evenly to {size} ranks")
    if size <= total:
        return range(rank * (total // size), (rank + 1) * (total // size))
    head = rank * total // size
    return range(head, head + 1)


def head_range(
    total: int, source: int, sources: int, target: int, targets: int
) -> HeadRange | None:
    """What rank ``source`` of ``sources`` writes for rank ``target`` of ``targets``; None: another
    rank that has the same heads does. ValueError: one size is no multiple of the other."""
    if sources % targets and targets % sources:
        raise ValueError(f"neither of {sources} and {targets} ranks is a multiple of the other")
    ours, theirs = heads_of(total, source, sources), heads_of(total, target, targets)
    first, end = max(ours.start, theirs.start), min(ours.stop, theirs.stop)
    if first >= end:
        raise ValueError(f"rank {source} of {sources} has no head of rank {target} of {targets}")
    if any(
        heads_of(total, each, sources) == ours for each in _asked_before(source, sources, targets)
    ):
        return None
    return HeadRange(first - ours.start, first - theirs.start, end - first)


def writes_aux(source: int, sources: int, targets: int) -> bool:
    """One of the ranks that a decode rank asks writes what all of them have."""
    return not _asked_before(source, sources, targets)


def _asked_before(source: int, sources: int, targets: int) -> range:
    """The ranks before this one among those that the same decode rank asks."""
    asked = max(1, sources // targets)
    return range(source // asked * asked, source)

"""Which workers of another engine a worker has to do with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import kvxfer
from kvxfer.vllm.caches import RegisteredCaches
from kvxfer.vllm.division import Division
from kvxfer.vllm.reference import Worker

# By cache, those that this worker reads from, or is written by.
Sources: TypeAlias = dict[int, list[Worker]]


def sources_of(
    caches: RegisteredCaches, workers: Sequence[Worker], division: Division
) -> Sources:
    """Of a prefill engine. The first worker of decode also has to do with those that nobody reads from, to
    tell them so. kvxfer.InvalidArgument: the two engines' divisions do not fit."""
    found: Sources = {}
    for number, (model, shard) in enumerate(zip(caches.models, caches.shards, strict=True)):
        numbers = division.to_read(number, model, shard)
        if numbers:
            found[number] = [workers[each] for each in numbers]
    return found


def all_of(sources: Sources) -> list[Worker]:
    return list(dict.fromkeys(worker for workers in sources.values() for worker in workers))


def told_by(
    caches: RegisteredCaches, workers: Sequence[Worker], division: Division | None
) -> list[Worker]:
    """Of a prefill engine, those to which this worker brings what is to be said to all of them.
    ``division``: None where it is not known."""
    if division is not None:
        try:
            return all_of(sources_of(caches, workers, division))
        except (kvxfer.Error, ValueError, IndexError):
            pass  # nothing is read of it: any worker may tell any
    return list(workers[caches.number :: caches.division.workers])


def targets_of(caches: RegisteredCaches, division: Division) -> list[int]:
    """The numbers of the workers of a decode engine that this worker writes to."""
    found: set[int] = set()
    for number, (model, shard) in enumerate(zip(caches.models, caches.shards, strict=True)):
        found.update(division.to_write(number, model, shard))
    return sorted(found)

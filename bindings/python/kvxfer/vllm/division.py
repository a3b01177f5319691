"""How an engine divides its KV caches among its workers, by tensor and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import kvxfer


@dataclass(frozen=True)
class Division:
    """Workers are numbered stage by stage: stage * tp + rank within the stage."""

    tp: int
    layers: tuple[tuple[int, ...], ...]
    """Of each cache, how many layers each stage has; some may have none."""

    @property
    def stages(self) -> int:
        return len(self.layers[0])

    @property
    def workers(self) -> int:
        return self.tp * self.stages

    @property
    def workers_with_layers(self) -> int:
        """Of any cache."""
        return self.tp * sum(any(of_stage) for of_stage in zip(*self.layers, strict=True))

    def first_layers(self, cache: int) -> list[int]:
        """Of the stages that have layers of it, numbered in the cache."""
        counts = self.layers[cache]
        begins = accumulate(counts, initial=0)
        return [begin for begin, count in zip(begins, counts, strict=False) if count]

    def shard(self, cache: int, worker: int) -> kvxfer.KvShard:
        """That worker's part; of no layers if its stage has none."""
        stage, rank = divmod(worker, self.tp)
        counts = self.layers[cache]
        return kvxfer.KvShard(counts[stage], rank, self.tp, sum(counts[:stage]))

    def to_read(self, cache: int, model: kvxfer.KvModel, shard: kvxfer.KvShard) -> list[int]:
        """Its workers that a worker of another engine reads the cache from, and those whom that one tells
        that nobody does. kvxfer.InvalidArgument: the two engines do not fit."""
        return self._workers(cache, kvxfer.ranks_to_read, model, shard)

    def to_write(self, cache: int, model: kvxfer.KvModel, shard: kvxfer.KvShard) -> list[int]:
        """Its workers that a worker of another engine writes the cache to."""
        return self._workers(cache, kvxfer.ranks_to_write, model, shard)

    def _workers(
        self,
        cache: int,
        find: Callable[[kvxfer.KvModel, kvxfer.KvShard, int, Sequence[int]], list[int]],
        model: kvxfer.KvModel,
        shard: kvxfer.KvShard,
    ) -> list[int]:
        if shard.layers == 0:
            return []
        with_layers = [stage for stage, count in enumerate(self.layers[cache]) if count]
        ranks = find(model, shard, self.tp, self.first_layers(cache))
        return [with_layers[rank // self.tp] * self.tp + rank % self.tp for rank in ranks]

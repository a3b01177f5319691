"""Where a worker is in its engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class Place:
    rank: int = 0
    """Tensor parallel."""
    tp: int = 1
    stage: int = 0
    """Of the pipeline."""
    stages: int = 1

    @staticmethod
    def of_this_process() -> Place:
        from vllm.distributed.parallel_state import (
            get_pp_group,
            get_tensor_model_parallel_rank,
            get_tensor_model_parallel_world_size,
        )

        pipeline = get_pp_group()
        return Place(
            get_tensor_model_parallel_rank(),
            get_tensor_model_parallel_world_size(),
            pipeline.rank_in_group,
            pipeline.world_size,
        )

    @property
    def worker(self) -> int:
        """Its number in the engine, as Division counts."""
        return self.stage * self.tp + self.rank

    def of_all_stages(self, own: _T) -> list[_T]:
        """What each stage has for ``own``. All stages call it, at the same point."""
        if self.stages == 1:
            return [own]
        import torch
        from vllm.distributed.parallel_state import get_pp_group

        found: list[_T | None] = [None] * self.stages
        torch.distributed.all_gather_object(found, own, group=get_pp_group().cpu_group)
        return [each for each in found if each is not None]

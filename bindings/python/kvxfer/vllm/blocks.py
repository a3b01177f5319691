"""Blocks of requests, as the scheduler has them, in the terms in which engines speak of them."""

from __future__ import annotations

from collections.abc import Sequence

from kvxfer.vllm.caches import Group
from kvxfer.vllm.reference import GroupBlocks
from kvxfer.vllm.step import Part

_NULL_BLOCK = 0  # of vLLM's block pool: a block that has left a sliding window


class BlockTable:
    """Block ids between engines are of kernels' blocks, of which one of the scheduler's may be
    several. ``kernel_block_tokens``: of each group; known when the workers are."""

    def __init__(self, groups: list[Group], group_ids: Sequence[int]) -> None:
        self.groups = groups
        self.kernel_block_tokens = [group.block_tokens for group in groups]
        self._group_ids = group_ids

    def parts(self, ids: Sequence[Sequence[int]], first: int, last: int) -> tuple[Part, ...]:
        """Where tokens ``first`` to ``last`` of a request go, as far as they are looked at."""
        parts = []
        for index, group in enumerate(self.groups):
            begin = first
            if group.window:
                # Whole blocks: a block that is half here would be taken for a whole one later.
                begin = max(first, _window_begin(group, last))
            blocks = self._of_group(ids, index, begin // group.block_tokens)
            parts.append(Part(blocks, begin, last))
        return tuple(parts)

    def held(self, ids: Sequence[Sequence[int]], tokens: int) -> tuple[GroupBlocks, ...]:
        """Those that have ``tokens`` tokens of a request, and have not left a window."""
        found = []
        for index, group in enumerate(self.groups):
            end = -(-tokens // group.block_tokens)
            used = ids[self._group_ids[index]][:end]
            first = next((k for k, block in enumerate(used) if block != _NULL_BLOCK), len(used))
            found.append(self._of_group(ids, index, first, end))
        return tuple(found)

    def has_window(self) -> bool:
        return any(group.window for group in self.groups)

    def leaves_last_to_decode(self, tokens: int) -> bool:
        """Of a prompt of so many tokens: were all computed by prefill, the block with the first token
        that the last one looks at would just have left a sliding window, and be freed. Decode computes
        the last one in any case. Both engines go by this."""
        return tokens > 1 and any(
            group.window > 0
            and tokens >= group.window
            and (tokens - group.window + 1) % group.block_tokens == 0
            for group in self.groups
        )

    def _of_group(
        self, ids: Sequence[Sequence[int]], index: int, first: int, end: int | None = None
    ) -> GroupBlocks:
        ratio = self.groups[index].block_tokens // self.kernel_block_tokens[index]
        kept = ids[self._group_ids[index]][first:end]
        if ratio == 1:
            return GroupBlocks(first, tuple(kept))
        return GroupBlocks(
            first * ratio, tuple(block * ratio + k for block in kept for k in range(ratio))
        )


def _window_begin(group: Group, tokens: int) -> int:
    """The begin of the block with the first token that token number ``tokens`` looks at."""
    first = max(0, tokens - group.window + 1)
    return first - first % group.block_tokens

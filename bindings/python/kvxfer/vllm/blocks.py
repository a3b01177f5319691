"""Blocks of requests, as the scheduler has them, in the terms in which engines speak of them."""

from __future__ import annotations

from collections.abc import Sequence

from kvxfer.vllm.groups import Group
from kvxfer.vllm.reference import GroupBlocks
from kvxfer.vllm.step import Part

NULL_BLOCK = 0  # of vLLM's block pool: a block that has left a sliding window


class BlockTable:
    """Block ids between engines are of kernels' blocks, of which one of the scheduler's may be
    several. ``kernel_block_tokens``: of each group; known when the workers are."""

    def __init__(
        self, groups: Sequence[Group], group_ids: Sequence[int], lookahead: int = 0
    ) -> None:
        """``lookahead``: tokens beyond the last one that a draft model looks at."""
        self.groups = groups
        self._lookahead = lookahead
        self.kernel_block_tokens = [group.block_tokens for group in groups]
        self._group_ids = group_ids

    def parts(self, ids: Sequence[Sequence[int]], first: int, last: int) -> tuple[Part, ...]:
        """Where tokens ``first`` to ``last`` of a request go, as far as they are looked at."""
        parts = []
        for index, group in enumerate(self.groups):
            if group.is_state:
                parts.append(Part(self._state_after(ids, index, last), last - 1, last))
                continue
            begin = first
            if group.window:
                # Whole blocks: a block that is half here would be taken for a whole one later.
                begin = max(first, _window_begin(group, last))
            blocks = self._of_group(ids, index, begin // group.block_tokens)
            parts.append(Part(blocks, begin, last))
        return tuple(parts)

    def held(self, ids: Sequence[Sequence[int]], tokens: int) -> tuple[GroupBlocks, ...]:
        """Those that have ``tokens`` tokens of a request, and will not have left a window when that ends."""
        found = []
        for index, group in enumerate(self.groups):
            if group.is_state:
                found.append(self._state_after(ids, index, tokens))
                continue
            end = -(-tokens // group.block_tokens)
            used = ids[self._group_ids[index]][:end]
            first = next((k for k, block in enumerate(used) if block != NULL_BLOCK), len(used))
            if group.window:
                first = max(first, (tokens - group.window + 1) // group.block_tokens)
            found.append(self._of_group(ids, index, first, end))
        return tuple(found)

    def has_window(self) -> bool:
        return any(group.window for group in self.groups)

    def has_state(self) -> bool:
        return any(group.is_state for group in self.groups)

    def largest_block(self) -> int:
        """Of tokens, not of states."""
        return max((each.block_tokens for each in self.groups if not each.is_state), default=1)

    def left_to_decode(self, tokens: int) -> int:
        """How many of the last tokens of such a prompt prefill does not compute. Both engines go by this.
        Decode computes the last one in any case, and needs

        - the state *before* it;
        - the block with the first token that it looks at, which, were the last one computed, might just
          have left a sliding window and be freed;
        - of a draft model with several layers that look ahead, all that they have looked at."""
        left = max(self._lookahead - 1, int(self.has_state() or self._frees_what_is_needed(tokens)))
        return left if tokens > left else 0

    def _frees_what_is_needed(self, tokens: int) -> bool:
        return any(
            group.window > 0
            and tokens >= group.window
            and (tokens - group.window + 1) % group.block_tokens == 0
            for group in self.groups
        )

    def _state_after(
        self, ids: Sequence[Sequence[int]], index: int, tokens: int
    ) -> GroupBlocks:
        """The block with the state after so many tokens."""
        group = self.groups[index]
        place = (tokens - 1) // group.block_tokens if group.by_position else 0
        used = ids[self._group_ids[index]][place : place + 1]
        return GroupBlocks(place, tuple(block for block in used if block != NULL_BLOCK))

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

"""What a model does to its KV cache, without a model: the KV of a token is a number that depends on all
tokens up to it, and so is the token that follows. A block that holds something else when it is looked at
is found at once, and so is a request that sees the KV of another prompt."""

from collections.abc import Sequence
from typing import Any

_NULL_BLOCK = 0
_VOCABULARY = 5000


def contents_of(tokens: Sequence[int], before: Sequence[int] = ()) -> list[int]:
    """The KV of each token. ``before``: what is known of the first ones."""
    contents = list(before)
    for token in tokens[len(contents) :]:
        contents.append(hash((contents[-1] if contents else 0, token)))
    return contents


def continued(prompt: Sequence[int], count: int) -> list[int]:
    """What one engine alone answers."""
    tokens, contents = list(prompt), contents_of(prompt)
    for _ in range(count):
        tokens.append(_next_token(contents))
        contents = contents_of(tokens, contents)
    return tokens[len(prompt) :]


def _next_token(contents: Sequence[int]) -> int:
    return contents[-1] % _VOCABULARY


class Memory:
    """The KV cache of one worker. All groups have their blocks from one pool."""

    def __init__(self) -> None:
        self._slots: dict[tuple[int, int], tuple[int, int]] = {}

    def write(self, group: int, block: int, slot: int, content: int) -> None:
        assert block != _NULL_BLOCK, "something is written into the null block"
        self._slots[block, slot] = (group, content)

    def read(self, group: int, block: int, slot: int) -> int | None:
        """None: what is there is nothing, or of another group."""
        of_group, content = self._slots.get((block, slot), (-1, 0))
        return content if of_group == group else None


class PagedModel:
    def __init__(self, block_tokens: Sequence[int], windows: Sequence[int], ranks: int) -> None:
        """Of each group; a window of 0: all tokens are seen."""
        self.memories = [Memory() for _ in range(ranks)]
        self._block_tokens = block_tokens
        self._windows = windows
        self._tokens: dict[str, list[int]] = {}
        self._contents: dict[str, list[int]] = {}
        self.computed = 0  # tokens, in all
        self.from_a_store: dict[str, int] = {}
        """By request, how many tokens another connector loads when it is first computed."""

    def forward(self, scheduler: Any, counts: dict[str, int]) -> dict[str, list[int]]:
        """What ``schedule`` has just said; the tokens that are sampled."""
        sampled = {}
        for name, count in counts.items():
            request = scheduler.requests[name]
            ids = scheduler.kv_cache_manager.get_block_ids(name)
            last = request.num_computed_tokens
            contents = self._contents_to(request, last)
            stored = self.from_a_store.pop(name, 0)
            for group in range(len(ids)):
                self._compute(group, ids[group], contents, 0, stored)
                self._look_back(name, group, ids[group], contents, last - count)
                self._compute(group, ids[group], contents, last - count, last)
            self.computed += count
            sampled[name] = [] if request.is_prefill_chunk else [_next_token(contents)]
            self._tokens[name] += sampled[name]
        return sampled

    def forget(self, names: set[str]) -> None:
        for name in names:
            self._tokens.pop(name, None)
            self._contents.pop(name, None)

    def _contents_to(self, request: Any, last: int) -> list[int]:
        """The scheduler may not have heard yet of tokens that were sampled."""
        name = request.request_id
        known, here = list(request.all_token_ids), self._tokens.get(name, [])
        tokens = (known + here[len(known) :])[:last]
        assert len(tokens) == last, f"{name}: {last} tokens are computed of {len(tokens)}"
        if tokens[: len(here)] != here[: len(tokens)]:
            self._contents.pop(name, None)
        self._tokens[name] = tokens
        self._contents[name] = contents_of(tokens, self._contents.get(name, [])[:last])
        return self._contents[name]

    def _look_back(
        self, name: str, group: int, ids: list[int], contents: list[int], first: int
    ) -> None:
        window = self._windows[group]
        size = self._block_tokens[group]
        for token in range(max(0, first - window + 1) if window else 0, first):
            for memory in self.memories:
                found = memory.read(group, ids[token // size], token % size)
                assert found == contents[token], (
                    f"{name} sees wrong KV of token {token} of group {group}, "
                    f"in block {ids[token // size]}"
                )

    def _compute(
        self, group: int, ids: list[int], contents: list[int], first: int, last: int
    ) -> None:
        size = self._block_tokens[group]
        for token in range(first, last):
            for memory in self.memories:
                memory.write(group, ids[token // size], token % size, contents[token])

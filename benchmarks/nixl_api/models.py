"""The shapes of the KV caches that are moved, and the orders of their blocks. Pure."""

import dataclasses
import random

PROMPTS = (400, 800, 1200, 1600, 2000)  # tokens


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    layers: int
    tokens: int  # of a block
    block_bytes: int  # K and V of one layer
    blocks: int  # of the cache
    requests: int  # of a row in a turn

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.tokens)

    def describe(self) -> dict:
        return dataclasses.asdict(self)


MODELS = {
    # That of the tests with vLLM: 2 heads of 32 elements of float32.
    "tiny": Model("tiny", 4, 32, 2 * 2 * 32 * 4 * 32, 1024, 30),
    # Llama 3.1 8B: 8 heads of 128 elements of bfloat16.
    "llama-8b": Model("llama-8b", 32, 16, 2 * 8 * 128 * 2 * 16, 256, 8),
}


# Single blocks of one layer.
STRIPS = {
    "4 KiB": Model("4 KiB", 1, 1, 4 << 10, 16384, 10),
    "1 MiB": Model("1 MiB", 1, 1, 1 << 20, 256, 10),
}


def scattered(model: Model, count: int, rng: random.Random) -> tuple[list[int], list[int]]:
    """Block ids at the reader and at the owner, as an allocator gives them after long serving."""
    every = range(model.blocks)
    return rng.sample(every, count), rng.sample(every, count)

"""The one workload: which block goes where, and what is in it.

The same as drivers/workload.h, for the drivers in Python. Standard library, but for what takes
`np`: numpy, which only the peers' environment has.
"""

SOURCE_SEED = 2
TARGET_SEED = 3

_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15


def _mix(x):
    """splitmix64's finisher."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def permutation(count, seed):
    """The numbers below `count` in an order drawn from `seed`, as a paged cache has them."""
    ids = list(range(count))
    state = seed
    for i in range(count, 1, -1):
        state = (state + _ODD) & _MASK
        j = _mix(state) % i
        ids[i - 1], ids[j] = ids[j], ids[i - 1]
    return ids


def fingerprint(block_bytes, source_ids, target_ids):
    """Tells one work from another: the runner sees to it that all contestants have the same."""
    value = block_bytes
    for source, target in zip(source_ids, target_ids):
        value = ((value ^ (source << 32 | target)) * _ODD) & _MASK
        value ^= value >> 32
    return value


# Blocks are made and checked in pieces of so many words, to need little memory beside the cache.
_PIECE = 1 << 21


def _pieces(np, block_bytes, ids, seed):
    """Pairs of (ids of some blocks, the content that belongs there)."""
    words = block_bytes // 8
    step = max(_PIECE // words, 1)
    for first in range(0, len(ids), step):
        some = np.asarray(ids[first:first + step])
        number = np.arange(first * words, (first + len(some)) * words, dtype=np.uint64)
        content = (number + np.uint64(1)) * np.uint64(_ODD) + np.uint64(seed)
        yield some, content.reshape(len(some), words)


def fill_blocks(np, memory, block_bytes, ids, seed):
    """Block ids[i] of `memory`, an array of bytes, gets content that says that it is number i."""
    blocks = memory[:memory.size // block_bytes * block_bytes].view(np.uint64)
    blocks = blocks.reshape(-1, block_bytes // 8)
    for some, content in _pieces(np, block_bytes, ids, seed):
        blocks[some] = content


def check_blocks(np, memory, block_bytes, ids, seed):
    """Empty when all is there, else what is wrong first."""
    blocks = memory[:memory.size // block_bytes * block_bytes].view(np.uint64)
    blocks = blocks.reshape(-1, block_bytes // 8)
    done = 0
    for some, content in _pieces(np, block_bytes, ids, seed):
        wrong = np.argwhere(blocks[some] != content)
        if len(wrong):
            block, word = wrong[0]
            return (f"block {done + block} of {len(ids)} is not what was sent, "
                    f"from byte {word * 8}")
        done += len(some)
    return ""

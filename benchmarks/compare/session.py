"""Runs the groups: every contestant of a group in turn, over and over (A B C A B C ...)."""

import contextlib
import dataclasses
import fcntl
import os
import subprocess
import sys

import figures
from environment import SetupError
from pair import ROLES, ContestantError, Pair

PING_BYTES = 4096
SEED = 7


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured."""

    block_sizes: tuple
    total: int  # bytes of a round, and of each cache
    turns: int  # of each contestant at each case
    turn_s: float  # about so long is each turn

    # A turn's rounds; the first, not counted, brings back what others' turns drove out.
    most_rounds = 12
    warm_pings = 50
    least_pings = 20
    most_pings = 2000


@contextlib.contextmanager
def hogs(wanted):
    """A process on every core that only computes; gone on leaving."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command) for _ in range(len(os.sched_getaffinity(0)) * wanted)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextlib.contextmanager
def shared_caches(size):
    """Descriptors of both caches by role. All contestants map the very same pages: where physical
    pages lie makes the same program up to half faster or slower, for as long as it has them."""
    caches = {}
    try:
        for role in ROLES:
            caches[role] = os.memfd_create(f"compare-{role}", os.MFD_ALLOW_SEALING)
            os.posix_fallocate(caches[role], 0, size)
            fcntl.fcntl(caches[role], fcntl.F_ADD_SEALS,
                        fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        yield caches
    finally:
        for descriptor in caches.values():
            os.close(descriptor)


def sides_of_the_machine():
    """CPUs by role, for pings: without them a scheduler that puts both sides on one CPU now and
    then makes a round trip of two context switches, and the median a matter of luck. Nothing where
    there is only one CPU."""
    cpus = sorted(os.sched_getaffinity(0))
    half = len(cpus) // 2
    return {"prefill": cpus[:half], "decode": cpus[half:]} if half else {}


def _require_same_work(pairs, prepared):
    """Else what follows would compare different things."""
    prints = [(pair.name, sides[role]["fingerprint"]) for pair, sides in zip(pairs, prepared)
              for role in sides]
    for name, fingerprint in prints[1:]:
        if fingerprint != prints[0][1]:
            raise ContestantError(f"{name} has other work than {prints[0][0]}: its driver orders "
                                  "the blocks otherwise")


class Session:
    """`say` takes one line about what goes on."""

    def __init__(self, plan, places, say):
        self._plan, self._places, self._say = plan, places, say

    def run(self, groups):
        """Rows of the result, and [{group, title, reason}] of the groups that have none because a
        contestant failed: the others are measured all the same."""
        rows, failed = [], []
        with shared_caches(self._plan.total) as self._caches:
            for group in groups:
                try:
                    rows += self._group(group)
                except (ContestantError, SetupError) as error:
                    self._say(f"{group.name} failed: {error}")
                    failed.append({"group": group.name, "title": group.title,
                                   "reason": str(error)})
        return rows, failed

    def _group(self, group):
        plan = self._plan
        sizes = (PING_BYTES,) if group.ping else plan.block_sizes
        rows = []
        with contextlib.ExitStack() as stack:
            cpus = sides_of_the_machine() if group.ping else {}
            pairs = [stack.enter_context(self._pair(one, cpus)) for one in group.contestants]
            stack.enter_context(hogs(int(group.hogs)))
            for size in sizes:
                self._say(f"{group.name}, blocks of {size} bytes")
                blocks = 1 if group.ping else plan.total // size
                rows += self._case(group, pairs, size, blocks)
        return rows

    def _pair(self, contestant, cpus):
        plan, places = self._plan, self._places
        return Pair(contestant.name,
                    lambda role: contestant.command(places, role, plan.total, self._caches[role]),
                    places.environment(contestant), places.logs, self._caches, cpus,
                    contestant.pause)

    def _case(self, group, pairs, block_bytes, blocks):
        samples = [figures.Samples(block_bytes * blocks) for _ in pairs]
        prepared, counts = [], []
        for pair in pairs:
            pair.wake()
            prepared.append(pair.prepare(block_bytes, blocks, SEED))
            pair.rounds(1)
            pair.check()
            counts.append(self._count(group, pair))
            pair.rest()
        _require_same_work(pairs, prepared)
        for _ in range(self._plan.turns):
            for pair, sample, count in zip(pairs, samples, counts):
                pair.wake()
                pair.rounds(min(count, self._plan.warm_pings) if group.ping else 1)
                sample.add(pair.rounds(count))
                pair.rest()
        return [self._row(group, contestant, block_bytes, blocks, sample)
                for contestant, sample in zip(group.contestants, samples)]

    def _count(self, group, pair):
        """How many rounds make a turn of the length that was asked for."""
        plan = self._plan
        tried = pair.rounds(plan.least_pings if group.ping else 1)["prefill"]["seconds"]
        wanted = int(plan.turn_s / max(figures.percentile(tried, 50), 1e-9))
        if group.ping:
            return min(max(wanted, plan.least_pings), plan.most_pings)
        return min(max(wanted, 1), plan.most_rounds)

    def _row(self, group, contestant, block_bytes, blocks, sample):
        return {"group": group.name, "contestant": contestant.name, "kind": contestant.kind,
                "block_bytes": block_bytes, "blocks": blocks, "bytes": block_bytes * blocks,
                "threads": contestant.threads, "spin": contestant.spin, "verified": True,
                **sample.figures()}

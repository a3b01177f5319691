"""A hundred thousand transfers leave nothing behind: measured in processes that do nothing else, for
what is resident is of all that a process has loaded."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import kvxfer
import numpy as np
from pairs import know, pair

TRANSFERS = 100_000


def resident() -> int:
    """Bytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


class Mover:
    def __init__(self, left: kvxfer.Agent, right: kvxfer.Agent) -> None:
        self.left, self.right = left, right
        self.source = np.zeros((64, 64), np.uint8)
        self.target = np.zeros((64, 64), np.uint8)
        left.register_memory(self.source)
        right.register_memory(self.target)
        know(left, right)
        self.ours = kvxfer.PagedRegion.of(self.source)
        self.theirs = kvxfer.PagedRegion.of(self.target)
        self.ids = np.arange(4, dtype=np.int64)

    def move(self, times: int) -> None:
        told = 0
        for number in range(times):
            transfer = self.left.write(
                self.right.name, self.ours, self.theirs, self.ids, self.ids, notification=b"x"
            )
            if number % 100 == 0:
                transfer.wait(10)
                told += len(self.right.poll_notifications(1 << 20))
        transfer.wait(10)
        while told < times:
            told += len([self.right.wait_notification(10)])


def _alone(what: str) -> None:
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", f"import leak_test; leak_test.{what}()"],
        env=dict(os.environ) | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_transfers_leave_nothing_behind() -> None:
    _alone("transfers")


def test_agents_leave_nothing_behind() -> None:
    _alone("agents")


def transfers() -> None:
    with pair() as (left, right):
        mover = Mover(left, right)
        mover.move(TRANSFERS // 5)  # pools and tables reach their size
        gc.collect()
        before = resident()
        mover.move(TRANSFERS // 5 * 4)
        gc.collect()
        assert resident() - before < 4 << 20

        tracemalloc.start()
        mover.move(10_000)  # a table that grows once does so now
        mover.move(5000)
        gc.collect()
        first = tracemalloc.get_traced_memory()[0]
        mover.move(5000)
        gc.collect()
        last = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert last - first < 64 << 10


def agents() -> None:
    def turn() -> None:
        with pair() as (left, right):
            Mover(left, right).move(10)

    for _ in range(20):
        turn()
    gc.collect()
    before = resident()
    for _ in range(100):
        turn()
    gc.collect()
    assert resident() - before < 8 << 20

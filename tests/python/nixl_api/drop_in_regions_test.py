"""As many registrations as programs make, of any shape: NIXL has no limit that one meets."""

import time
from typing import Any

import numpy as np
import pytest
from kvxfer.compat.nixl import api, bindings
from nixl_record import run_to_end

COUNT = 40_000  # more than one message lists
SIZE = 1024


class Memory:
    """COUNT pieces, one behind the other or each somewhere."""

    def __init__(self, scattered: bool, value: int) -> None:
        if scattered:
            self.pieces = [np.full(SIZE, value, dtype=np.uint8) for _ in range(COUNT)]
        else:
            self.pieces = list(np.full((COUNT, SIZE), value, dtype=np.uint8))
        self.rows = [(piece.ctypes.data, SIZE, 0, "") for piece in self.pieces]


class Both:
    """``a`` has one piece for each of ``b``."""

    def __init__(self, scattered: bool, one_by_one: bool) -> None:
        self.a, self.b = api.nixl_agent("a"), api.nixl_agent("b")
        self.ours, self.theirs = Memory(False, 7), Memory(scattered, 0)
        self.a.register_memory(self.ours.rows, "DRAM")
        begun = time.monotonic()
        if one_by_one:
            for row in self.theirs.rows:
                self.b.register_memory([row], "DRAM")
        else:
            self.b.register_memory(self.theirs.rows, "DRAM")
        self.seconds = time.monotonic() - begun
        self.a.add_remote_agent(self.b.get_agent_metadata())
        self.b.add_remote_agent(self.a.get_agent_metadata())

    def write(self, at: list[int]) -> str:
        return self._move(self.a, "WRITE", "b", self.ours, self.theirs, at)

    def read(self, at: list[int]) -> str:
        return self._move(self.b, "READ", "a", self.theirs, self.ours, at)

    def _move(
        self, agent: Any, operation: str, peer: str, local: Memory, remote: Memory, at: list[int]
    ) -> str:
        lists = [
            agent.get_xfer_descs([side.rows[i][:3] for i in at], "DRAM") for side in (local, remote)
        ]
        return run_to_end(agent, agent.initialize_xfer(operation, *lists, peer))

    def forget(self, at: list[int]) -> None:
        rows = [self.theirs.rows[i] for i in at]
        self.b.deregister_memory(bindings.nixlRegDList(bindings.DRAM_SEG, rows))

    def refused(self, at: int) -> bool:
        """A write to it, which leaves it as it is."""
        self.theirs.pieces[at][:] = 1
        with pytest.raises(bindings.nixlBackendError, match="deregistered"):
            self.write([at])
        return bool((self.theirs.pieces[at] == 1).all())


LAST = COUNT - 1


@pytest.mark.parametrize(
    ("scattered", "one_by_one"),
    [(False, False), (True, True)],
    ids=["one list", "scattered, one by one"],
)
def test_forty_thousand(scattered: bool, one_by_one: bool) -> None:
    both = Both(scattered, one_by_one)
    # NIXL takes 1.2 s for them; what is quadratic takes minutes.
    assert both.seconds < 30
    assert both.write([0, LAST // 2, LAST]) == "DONE"
    assert all((both.theirs.pieces[i] == 7).all() for i in (0, LAST // 2, LAST))
    both.ours.pieces[LAST][:] = 9
    assert both.read([LAST]) == "DONE"
    assert (both.theirs.pieces[LAST] == 9).all()
    assert both.write(list(range(COUNT))) == "DONE"
    assert all((piece == ours).all() for piece, ours in zip(both.theirs.pieces, both.ours.pieces))

    both.forget([LAST // 2])
    assert both.refused(LAST // 2)
    both.theirs.pieces[LAST // 2 + 1][:] = 0
    assert both.write([LAST // 2 - 1, LAST // 2 + 1, LAST]) == "DONE"
    assert (both.theirs.pieces[LAST // 2 + 1] == 7).all()
    both.forget([i for i in range(0, COUNT, 2) if i != LAST // 2])
    assert both.refused(0)
    assert both.write([1, LAST]) == "DONE"
    both.forget([i for i in range(1, COUNT, 2) if i != LAST // 2])
    assert both.refused(LAST)


def test_all_or_none() -> None:
    agent, memory = api.nixl_agent("a"), Memory(False, 0)
    rows = [*memory.rows[:1000], (0, SIZE, 0, "")]
    with pytest.raises(bindings.nixlBackendError, match="null"):
        agent.register_memory(rows, "DRAM")
    first = bindings.nixlRegDList(bindings.DRAM_SEG, memory.rows[:1])
    with pytest.raises(bindings.nixlNotFoundError):
        agent.deregister_memory(first)


def test_the_limit_is_said() -> None:
    agent, most = api.nixl_agent("a"), 262_144
    memory = np.zeros(most, dtype=np.uint8)
    rows = np.zeros((most, 3), dtype=np.uint64)
    rows[:, 0] = memory.ctypes.data + np.arange(most, dtype=np.uint64)
    rows[:, 1] = 1
    agent.register_memory(rows, "DRAM")
    with pytest.raises(bindings.nixlBackendError, match="262144 regions already"):
        agent.register_memory(rows[:1], "DRAM")

"""VRAM: registered, described and moved as NIXL's users do it, over the stand-in CUDA driver."""

import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_standin import CudaTensor, needs_standin
from kvxfer.compat.nixl import api, bindings
from nixl_record import notifications, run_to_end

pytestmark = needs_standin

HERE = Path(__file__).resolve().parent
SIZE, ROW = 1 << 16, 1 << 10
# KVXFER_BACKENDS, and what the log says of the path where both sides are GPUs.
PATHS = {"cuda_ipc": ("cuda_ipc,tcp", "cuda_ipc"), "staged": ("tcp", "tcp staged")}


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drop-in knows tensors by torch, where that was imported; there is none for this GPU."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=CudaTensor))


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    backends, says = PATHS[request.param]
    monkeypatch.setenv("KVXFER_BACKENDS", backends)
    return says


def _tensor(device: int = 0, fill: int = 0) -> CudaTensor:
    tensor = CudaTensor((SIZE // ROW, ROW), np.uint8, device)
    tensor.content()[:] = fill
    return tensor


class Side:
    """An agent with memory of one kind, registered as a tensor, or as tuples."""

    def __init__(self, name: str, mem: str, fill: int) -> None:
        self.agent = api.nixl_agent(name)
        self.mem = mem
        self.memory: Any
        if mem == "VRAM":
            self.memory = _tensor(fill=fill)
            self.address = self.memory.data_ptr()
            self.agent.register_memory(self.memory)
        else:
            self.memory = np.full((SIZE // ROW, ROW), fill, np.uint8)
            self.address = self.memory.ctypes.data
            self.agent.register_memory([(self.address, SIZE, 0, "")], "DRAM")

    def rows(self, *indices: int) -> Any:
        descs = [(self.address + ROW * i, ROW, 0) for i in indices]
        return self.agent.get_xfer_descs(descs, self.mem)

    def content(self) -> np.ndarray:
        return self.memory.content() if self.mem == "VRAM" else self.memory


def _know(*agents: Any) -> None:
    for agent in agents:
        for other in agents:
            if other is not agent:
                agent.add_remote_agent(other.get_agent_metadata())


KINDS = [("VRAM", "VRAM"), ("VRAM", "DRAM"), ("DRAM", "VRAM")]


@pytest.mark.parametrize(("ours", "theirs"), KINDS)
@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_lists(path: str, operation: str, ours: str, theirs: str) -> None:
    a, b = Side("a", ours, 1), Side("b", theirs, 2)
    _know(a.agent, b.agent)
    handle = a.agent.initialize_xfer(operation, a.rows(3, 5), b.rows(0, 9), "b", b"there")
    assert run_to_end(a.agent, handle) == "DONE"
    into, rows, value = (b, (0, 9), 1) if operation == "WRITE" else (a, (3, 5), 2)
    expected = np.full((SIZE // ROW, ROW), 3 - value, np.uint8)
    expected[list(rows)] = value
    assert np.array_equal(into.content(), expected)
    assert notifications(b.agent, 1) == {"a": [b"there"]}


@pytest.mark.parametrize(("ours", "theirs"), KINDS)
@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_prepared(path: str, operation: str, ours: str, theirs: str) -> None:
    """As vLLM's NixlConnector does."""
    a, b = Side("a", ours, 1), Side("b", theirs, 2)
    _know(a.agent, b.agent)
    every = range(SIZE // ROW)
    here = a.agent.prep_xfer_dlist("NIXL_INIT_AGENT", a.rows(*every))
    there = a.agent.prep_xfer_dlist("b", b.rows(*every))
    handle = a.agent.make_prepped_xfer(operation, here, [1, 2, 7], there, np.array([4, 5, 6]))
    assert run_to_end(a.agent, handle) == "DONE"
    content, rows, value = (b, [4, 5, 6], 1) if operation == "WRITE" else (a, [1, 2, 7], 2)
    assert (content.content()[rows] == value).all()
    assert (content.content() == value).sum() == 3 * ROW


def test_the_log_says_the_path(path: str, caplog: pytest.LogCaptureFixture) -> None:
    a, b = Side("a", "VRAM", 1), Side("b", "VRAM", 2)
    _know(a.agent, b.agent)
    with caplog.at_level(logging.INFO, "kvxfer.compat.nixl"):
        run_to_end(a.agent, a.agent.initialize_xfer("WRITE", a.rows(0), b.rows(0), "b"))
    assert f"agent a reaches agent b over {path}" in caplog.text


@pytest.mark.parametrize("mem_type", ["VRAM", "cuda"])
def test_what_is_registered(mem_type: str) -> None:
    agent = api.nixl_agent("a")
    tensors = [_tensor() for _ in range(3)]
    rows = [(each.data_ptr(), SIZE, 0, "") for each in tensors]
    listed = agent.register_memory(rows, mem_type)
    assert listed.getType() == bindings.VRAM_SEG
    agent.deregister_memory(listed)
    as_array = np.array([row[:3] for row in rows], np.uint64)
    agent.deregister_memory(agent.register_memory(as_array, mem_type))
    for given in (tensors, tensors[0]):
        listed = agent.register_memory(given)
        assert listed.getType() == bindings.VRAM_SEG
        agent.deregister_memory(listed)
    with pytest.raises(bindings.nixlNotFoundError):
        agent.deregister_memory(listed)


def test_the_device_of_a_tensor() -> None:
    a, b = api.nixl_agent("a"), api.nixl_agent("b")
    ours, theirs = _tensor(device=1, fill=1), _tensor()
    listed = a.register_memory(ours)
    assert listed[0][2] == 1
    b.register_memory(theirs)
    _know(a, b)
    handle = a.initialize_xfer("WRITE", a.get_xfer_descs(ours), a.get_xfer_descs(theirs), "b")
    assert run_to_end(a, handle) == "DONE"
    assert (theirs.content() == 1).all()


def test_tensors_of_two_devices(caplog: pytest.LogCaptureFixture) -> None:
    """As in NIXL: a line of the log, and None."""
    agent = api.nixl_agent("a")
    assert agent.get_reg_descs([_tensor(0), _tensor(1)]) is None
    assert "the tensors are on several devices" in caplog.text


def test_what_is_refused() -> None:
    agent = api.nixl_agent("a")
    tensor, host = _tensor(device=1), np.zeros(SIZE, np.uint8)
    freed = _tensor()
    gone = freed.data_ptr()
    freed.memory.free()
    for row, mem, why in [
        ((tensor.data_ptr(), SIZE, 0, ""), "VRAM", "memory of GPU 1, not of GPU 0"),
        ((gone, SIZE, 0, ""), "VRAM", "GPU memory that was freed or never was"),
        ((host.ctypes.data, SIZE, 0, ""), "VRAM", "register host memory as host memory"),
        ((tensor.data_ptr(), SIZE, 0, ""), "DRAM", "register them as such"),
        ((tensor.data_ptr(), 2 * SIZE, 1, ""), "VRAM", "run over the end of their allocation"),
    ]:
        with pytest.raises(bindings.nixlBackendError, match=why):
            agent.register_memory([row], mem)
    # All of a list, or none.
    good = _tensor()
    with pytest.raises(bindings.nixlBackendError):
        agent.register_memory([(good.data_ptr(), SIZE, 0, ""), (gone, SIZE, 0, "")], "VRAM")
    with pytest.raises(bindings.nixlNotFoundError):
        agent.deregister_memory(agent.get_reg_descs(good))


def test_memory_freed_under_a_transfer(path: str) -> None:
    a, b = Side("a", "VRAM", 1), Side("b", "VRAM", 2)
    _know(a.agent, b.agent)
    rows = a.rows(0)
    a.memory.memory.free()
    handle = a.agent.initialize_xfer("WRITE", rows, b.rows(0), "b")
    with pytest.raises(bindings.nixlBackendError, match="freed while"):
        assert run_to_end(a.agent, handle) != "DONE"
    assert (b.content() == 2).all()


def test_to_oneself() -> None:
    a = Side("a", "VRAM", 1)
    with pytest.raises(bindings.nixlNotSupportedError):
        a.agent.initialize_xfer("WRITE", a.rows(0), a.rows(1), "a")


_CHILD = """
import os, pickle, sys
import numpy as np
from types import SimpleNamespace
from cuda_standin import CudaTensor
sys.modules["torch"] = SimpleNamespace(Tensor=CudaTensor)
import nixl._api as api

agent = api.nixl_agent("child")
tensor = CudaTensor((64, 1024), np.uint8)
tensor.content()[:] = 9
agent.register_memory(tensor)
out = os.fdopen(os.dup(1), "wb")
pickle.dump((agent.get_agent_metadata(), agent.get_serialized_descs(agent.get_xfer_descs(tensor)),
             tensor.data_ptr()), out)
out.flush()
while not agent.check_remote_xfer_done("parent", b"written"):
    pass
pickle.dump(tensor.content().copy(), out)
out.flush()
sys.stdin.read()
"""


@pytest.mark.parametrize("mem", ["VRAM", "DRAM"])
def test_between_two_processes(path: str, mem: str) -> None:
    site = (
        os.environ.get("KVXFER_NIXL_PATH")
        or subprocess.check_output(
            [sys.executable, "-m", "kvxfer.compat.nixl", "--path"], text=True
        ).strip()
    )
    folders = [site, str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        parent = Side("parent", mem, 1)
        metadata, serialized, address = pickle.load(child.stdout)
        assert parent.agent.add_remote_agent(metadata) == b"child"
        everything = parent.agent.deserialize_descs(serialized)
        assert everything.getType() == bindings.VRAM_SEG
        there = [(address + ROW * i, ROW, 0) for i in (7, 8)]
        read = parent.agent.initialize_xfer(
            "READ", parent.rows(0, 1), parent.agent.get_xfer_descs(there, "VRAM"), "child"
        )
        assert run_to_end(parent.agent, read) == "DONE"
        assert (parent.content()[:2] == 9).all() and (parent.content()[2:] == 1).all()
        whole = parent.agent.get_xfer_descs([(parent.address, SIZE, 0)], mem)
        write = parent.agent.initialize_xfer("WRITE", whole, everything, "child", b"written")
        assert run_to_end(parent.agent, write) == "DONE"
        assert np.array_equal(pickle.load(child.stdout), parent.content())
        child.stdin.close()
        assert child.wait(20) == 0

"""How two programs call nixl that cannot run here, written from reading them.

TensorRT-LLM (its NixlTransferAgent in Python) needs CUDA and gigabytes to be imported. SGLang is
run for real in test_sglang.py, as it is now; before, its decode side was told by notifications.
"""

import importlib
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import peers

_LIMIT_S = 30.0


def _until(done: Callable[[], Any]) -> Any:
    end = time.monotonic() + _LIMIT_S
    while not (value := done()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.001)
    return value


def _random(rows: int, columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns), np.uint8)


# --- TensorRT-LLM: whole descriptors by initialize_xfer, and a message that is a str.

_TRT_BYTES = 1 << 20


def _trt_nixl() -> Any:
    """It looks for the wheels' own packages before the one in front of them."""
    for name in ("nixl_cu13", "nixl_cu12", "nixl"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        drop_in = os.environ.get("KVXFER_NIXL_PATH")
        if drop_in:
            found = Path(module.__file__).resolve()
            assert found.is_relative_to(Path(drop_in).resolve()), f"it would take {found}"
        return module
    raise ImportError("no nixl")


def _trt_agent(name: str, memory: np.ndarray) -> Any:
    nixl = _trt_nixl()
    agent = nixl.nixl_agent(
        name, nixl.nixl_agent_config(enable_prog_thread=True, backends=["UCX"], num_threads=1)
    )
    descriptors = agent.get_reg_descs([(memory.ctypes.data, memory.nbytes, 0, "kv")], "DRAM")
    assert descriptors is not None
    agent.register_memory(descriptors)
    return agent


def _trt_let_go(agent: Any, memory: np.ndarray, remote: str) -> None:
    """Deregisters by a list that is made anew, and forgets the peer by the name it knows."""
    agent.remove_remote_agent(remote)
    descriptors = agent.get_reg_descs([(memory.ctypes.data, memory.nbytes, 0, "kv")], "DRAM")
    agent.deregister_memory(descriptors)


def _trt_submit(agent: Any, op: str, mine: list, theirs: list, message: str | None) -> None:
    handle = agent.initialize_xfer(
        op,
        agent.get_xfer_descs(mine, "DRAM"),
        agent.get_xfer_descs(theirs, "DRAM"),
        "context",
        "" if message is None else message,
    )
    assert agent.transfer(handle) != "ERROR"
    # Any other word is an exception there: its states are these and "PENDING" and "ERROR".
    states = {"DONE": True, "PROC": False}
    _until(lambda: states[agent.check_xfer_state(handle)])


def trt_context(peer: Connection) -> None:
    memory = _random(16, _TRT_BYTES, seed=1)
    agent = _trt_agent("context", memory)
    peer.send((agent.get_agent_metadata(), memory.ctypes.data))
    metadata, _ = peer.recv()
    agent.add_remote_agent(metadata)

    # Expect the message of the write as bytes, and none of the read that had none.
    notifications = _until(agent.get_new_notifs)
    assert notifications == {"generation": ["written: Übertragung".encode()]}
    expected = _random(16, _TRT_BYTES, seed=1)
    expected[8:10] = _random(2, _TRT_BYTES, seed=2)
    assert (memory == expected).all()
    peer.send("checked")
    assert peer.recv() == "done"
    assert not agent.get_new_notifs()
    _trt_let_go(agent, memory, "generation")


def trt_generation(peer: Connection) -> None:
    memory = np.concatenate([_random(2, _TRT_BYTES, seed=2), np.zeros((14, _TRT_BYTES), np.uint8)])
    agent = _trt_agent("generation", memory)
    metadata, address = peer.recv()
    peer.send((agent.get_agent_metadata(), memory.ctypes.data))
    agent.add_remote_agent(metadata)

    def rows(base: int, *indices: int) -> list[tuple[int, int, int]]:
        return [(base + index * _TRT_BYTES, _TRT_BYTES, 0) for index in indices]

    mine = memory.ctypes.data
    _trt_submit(agent, "READ", rows(mine, 4, 5, 9), rows(address, 1, 0, 3), None)
    source = _random(16, _TRT_BYTES, seed=1)
    assert (memory[[4, 5, 9]] == source[[1, 0, 3]]).all()
    _trt_submit(agent, "WRITE", rows(mine, 0, 1), rows(address, 8, 9), "written: Übertragung")
    assert peer.recv() == "checked"
    _trt_let_go(agent, memory, "context")
    peer.send("done")


def test_tensorrt_llm(tmp_path: Path) -> None:
    peers.need_nixl()
    peers.run_pair(tmp_path, trt_context, trt_generation)


# --- SGLang: a backend made by hand, writes from several threads, notifications that name a room.

_ROOMS = range(100, 108)
_PAGE = 4096
_PAGES = 4  # of each room, in chunks of two
_AUX = 128


def _sglang_agent(name: str, kv: np.ndarray, aux: np.ndarray, threads: int) -> Any:
    from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t

    agent = nixl_agent(
        name,
        nixl_agent_config(
            backends=[],
            num_threads=threads,
            sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,
        ),
    )
    agent.create_backend("UCX", {"num_threads": str(threads)} if threads else {})
    assert "UCX" in agent.get_plugin_list()
    # One registration for each layer in the list; here one.
    assert agent.register_memory([(kv.ctypes.data, kv.nbytes, 0, "")], "DRAM")
    assert agent.register_memory([(aux.ctypes.data, aux.nbytes, 0, "")], "DRAM")
    return agent


def _sglang_send(agent: Any, peer: str, mine: np.ndarray, theirs: np.ndarray, tag: str) -> Any:
    """A write of N descriptors that are rows of an array, with a tag as its notification."""
    handle = agent.initialize_xfer(
        "WRITE",
        agent.get_xfer_descs(mine, "DRAM"),
        agent.get_xfer_descs(theirs, "DRAM"),
        peer,
        tag.encode("ascii"),
    )
    assert handle and agent.transfer(handle) != "ERR"
    return handle


def _rows(base: int, indices: list[int], length: int) -> np.ndarray:
    rows = np.empty((len(indices), 3), np.uint64)
    rows[:, 0] = base + np.asarray(indices, np.uint64) * length
    rows[:, 1], rows[:, 2] = length, 0
    return rows


def _pages(room: int, chunk: int) -> list[int]:
    first = (room - _ROOMS[0]) * _PAGES + 2 * chunk
    return [first, first + 1]


def sglang_prefill(peer: Connection) -> None:
    kv, aux = _random(len(_ROOMS) * _PAGES, _PAGE, seed=3), _random(len(_ROOMS), _AUX, seed=4)
    agent = _sglang_agent("prefill", kv, aux, threads=8)
    metadata, kv_address, aux_address = peer.recv()
    agent.add_remote_agent(metadata)
    failures: list[BaseException] = []

    def send_room(room: int) -> None:
        last = _PAGES // 2 - 1
        handles = [
            _sglang_send(
                agent,
                "decode",
                _rows(kv.ctypes.data, _pages(room, chunk), _PAGE),
                _rows(kv_address, _pages(room, chunk)[::-1], _PAGE),
                f"{room}_kv_{chunk}_{int(chunk == last)}_0",
            )
            for chunk in range(last + 1)
        ]
        slot = [room - _ROOMS[0]]
        handles.append(
            _sglang_send(
                agent,
                "decode",
                _rows(aux.ctypes.data, slot, _AUX),
                _rows(aux_address, slot, _AUX),
                f"{room}_aux",
            )
        )
        states = {"DONE": True, "PROC": False}
        _until(lambda: all(states[agent.check_xfer_state(handle)] for handle in handles))
        for handle in handles:
            agent.release_xfer_handle(handle)

    def worker(rooms: list[int]) -> None:
        try:
            for room in rooms:
                send_room(room)
        except BaseException as failure:
            failures.append(failure)

    workers = [threading.Thread(target=worker, args=(list(_ROOMS)[i::4],)) for i in range(4)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    assert not failures, failures
    assert peer.recv() == "checked"


def sglang_decode(peer: Connection) -> None:
    kv = np.zeros((len(_ROOMS) * _PAGES, _PAGE), np.uint8)
    aux = np.zeros((len(_ROOMS), _AUX), np.uint8)
    agent = _sglang_agent("decode", kv, aux, threads=0)
    peer.send((agent.get_agent_metadata(), kv.ctypes.data, aux.ctypes.data))
    source_kv = _random(len(_ROOMS) * _PAGES, _PAGE, seed=3)
    source_aux = _random(len(_ROOMS), _AUX, seed=4)
    seen: list[str] = []
    end = time.monotonic() + _LIMIT_S
    while len(seen) < len(_ROOMS) * (_PAGES // 2 + 1):
        assert time.monotonic() < end, f"only {seen}"
        for name, messages in agent.get_new_notifs().items():
            assert name == "prefill"
            for message in messages:
                tag = message.decode("ascii").split("_")
                # Expect what a notification speaks of to be there when it is.
                if tag[1] == "kv":
                    pages = _pages(int(tag[0]), int(tag[2]))
                    assert (kv[pages[::-1]] == source_kv[pages]).all(), message
                else:
                    slot = int(tag[0]) - _ROOMS[0]
                    assert (aux[slot] == source_aux[slot]).all(), message
                seen.append(message.decode("ascii"))
    assert len(set(seen)) == len(seen)  # each once
    peer.send("checked")


def test_sglang_with_notifications(tmp_path: Path) -> None:
    peers.need_nixl()
    peers.run_pair(tmp_path, sglang_prefill, sglang_decode)

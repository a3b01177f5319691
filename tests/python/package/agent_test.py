"""Agents, transfers and notifications as a program of Python uses them."""

from __future__ import annotations

import array
import mmap
import threading
import time

import kvxfer
import numpy as np
import pytest
from pairs import know, pair

BLOCKS, BYTES = 64, 4096


def filled(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (BLOCKS, BYTES), np.uint8)


def test_write_lands_and_is_told() -> None:
    source, target = filled(1), np.zeros((BLOCKS, BYTES), np.uint8)
    with pair() as (left, right):
        left.register_memory(source)
        right.register_memory(target)
        know(left, right)
        transfer = left.write(
            right.name,
            kvxfer.PagedRegion.of(source),
            kvxfer.PagedRegion.of(target),
            [3, 1, 60],
            [0, 2, 1],
            notification=b"request 7",
        )
        assert transfer.wait(5) is None
        told = right.wait_notification(5)
        assert (told.payload, told.peer, told.transfer) == (b"request 7", left.name, transfer.id)
        assert told.incarnation == left.incarnation
    assert (target[[0, 2, 1]] == source[[3, 1, 60]]).all()
    assert not target[3:].any()
    assert transfer.state == "done" and transfer.done() and transfer.error is None
    assert transfer.delivery == "delivered" and transfer.peer == right.name
    assert transfer.stats.bytes == 3 * BYTES and transfer.stats.total > 0


def test_read_fetches() -> None:
    source, target = filled(2), np.zeros((BLOCKS, BYTES), np.uint8)
    with pair() as (left, right):
        left.register_memory(source, "read")
        right.register_memory(target, "none")
        know(left, right)
        rows = np.array([[source.ctypes.data, BYTES], [source.ctypes.data + 8192, 100]])
        right.read(
            left.name, [(target.ctypes.data, BYTES), (target.ctypes.data + BYTES, 100)], rows
        ).wait(5)
    assert (target[0] == source[0]).all() and (target[1, :100] == source[2, :100]).all()


def test_regions_of_a_peer_are_enough_for_a_write() -> None:
    source, target = filled(2), np.zeros((BLOCKS, BYTES), np.uint8)
    with pair() as (left, right):
        left.register_memory(source, "none")
        own = right.register_memory(target, "write")
        know(left, right)
        (there,) = left.regions(right.name)
        assert (there.id, there.address, there.bytes) == (own.id, target.ctypes.data, target.nbytes)
        assert (there.kind, there.device, there.access) == ("host", 0, "write")
        assert right.regions(left.name) == []  # it grants nothing
        left.write(right.name, [(source.ctypes.data, BYTES)], [(there.address, BYTES)]).wait(5)
        with pytest.raises(kvxfer.NotFound, match="no peer nobody"):
            left.regions("nobody")
    assert (target[0] == source[0]).all()


@pytest.mark.parametrize(
    "ids",
    [
        [5, 6, 7],
        (5, 6, 7),
        range(5, 8),
        array.array("i", [5, 6, 7]),
        memoryview(array.array("L", [5, 6, 7])),
        *(
            np.array([5, 6, 7], kind)
            for kind in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64)
        ),
        np.arange(10, dtype=np.int32)[5:8],
        np.arange(0, 30, dtype=np.uint32)[15:24:3] // 3,
        np.arange(20, dtype=np.uint32)[10:16:2] // 2,
        np.array([7, 6, 5], np.uint32)[::-1],
    ],
    ids=lambda ids: f"{type(ids).__name__}-{getattr(ids, 'dtype', getattr(ids, 'typecode', ''))}",
)
def test_ids_of_any_integer_array(ids: object) -> None:
    source, target = filled(3), np.zeros((BLOCKS, BYTES), np.uint8)
    with pair() as (left, right):
        left.register_memory(source)
        right.register_memory(target)
        know(left, right)
        ours, theirs = kvxfer.PagedRegion.of(source), kvxfer.PagedRegion.of(target)
        left.write(right.name, ours, theirs, ids, [0, 1, 2]).wait(5)
    assert (target[:3] == source[5:8]).all()


@pytest.mark.parametrize("make", [bytearray, lambda n: mmap.mmap(-1, n), kvxfer.HostBuffer])
def test_memory_with_the_buffer_protocol(make: object) -> None:
    source, target = make(BYTES), make(BYTES)
    memoryview(source)[:4] = b"abcd"
    with pair() as (left, right):
        ours = left.register_memory(source)
        theirs = right.register_memory(target)
        know(left, right)
        left.write(right.name, [(ours.address, ours.bytes)], [(theirs.address, theirs.bytes)]).wait(5)
    assert bytes(memoryview(target)[:4]) == b"abcd"


@pytest.mark.torch
def test_memory_of_torch_without_importing_it() -> None:
    torch = pytest.importorskip("torch")
    source = torch.arange(BLOCKS * 64, dtype=torch.bfloat16).reshape(BLOCKS, 64)
    target = torch.zeros(BLOCKS, 64, dtype=torch.bfloat16)
    with pair() as (left, right):
        left.register_memory(source)
        right.register_memory(target)
        know(left, right)
        ours, theirs = kvxfer.PagedRegion.of(source), kvxfer.PagedRegion.of(target)
        assert (ours.block_bytes, ours.stride, ours.count) == (128, 128, BLOCKS)
        ids = torch.arange(BLOCKS)
        left.write(right.name, ours, theirs, ids, ids).wait(5)
    assert torch.equal(source, target)


def test_notifications_come_in_order_of_posting() -> None:
    with pair() as (left, right):
        know(left, right)
        for number in range(200):
            left.notify(right.name, b"%d" % number)
        got: list[int] = []
        while len(got) < 200:
            got += [int(told.payload) for told in right.poll_notifications(7)]
        assert got == list(range(200))
        assert right.poll_notification() is None


def test_a_wait_lets_other_threads_run() -> None:
    with pair() as (left, _):
        ticks = 0
        over = threading.Event()

        def wait() -> None:
            with pytest.raises(kvxfer.TimedOut):
                left.wait_notification(0.3)
            over.set()

        thread = threading.Thread(target=wait)
        thread.start()
        while not over.is_set():
            ticks += 1
            time.sleep(0.001)
        thread.join()
        assert ticks > 50


def test_a_ready_flag_holds_a_transfer_back() -> None:
    source, target = filled(4), np.zeros((BLOCKS, BYTES), np.uint8)
    with pair() as (left, right):
        left.register_memory(source)
        right.register_memory(target)
        know(left, right)
        flag = kvxfer.ReadyFlag()
        transfer = left.write(
            right.name,
            [(source.ctypes.data, BYTES)],
            [(target.ctypes.data, BYTES)],
            ready=flag,
        )
        with pytest.raises(kvxfer.StillActive):
            transfer.wait(0.1)
        assert not target.any() and not flag.is_set()
        flag.set()
        del flag
        transfer.wait(5)
    assert (target[0] == source[0]).all()


def test_cancel_ends_a_transfer() -> None:
    source, target = filled(5), np.zeros((BLOCKS, BYTES), np.uint8)
    with pair() as (left, right):
        left.register_memory(source)
        right.register_memory(target)
        know(left, right)
        transfer = left.write(
            right.name,
            [(source.ctypes.data, BYTES)],
            [(target.ctypes.data, BYTES)],
            ready=kvxfer.ReadyFlag(),
            notification=b"never",
        )
        transfer.cancel()
        with pytest.raises(kvxfer.Cancelled):
            transfer.wait(5)
        assert transfer.state == "cancelled" and transfer.delivery == "not_delivered"
        assert isinstance(transfer.error, kvxfer.Cancelled)
        transfer.wait_quiet(5)


def test_a_deadline_ends_a_transfer() -> None:
    with pair() as (left, right):
        know(left, right)
        source = bytearray(64)
        region = left.register_memory(source)
        target = right.register_memory(bytearray(64))
        know(left, right)
        transfer = left.write(
            right.name,
            [(region.address, 64)],
            [(target.address, 64)],
            ready=kvxfer.ReadyFlag(),
            deadline=0.1,
        )
        with pytest.raises(kvxfer.DeadlineExceeded) as caught:
            transfer.wait()
        assert not isinstance(caught.value, kvxfer.TimedOut)
        assert isinstance(caught.value, TimeoutError)


def test_peers_are_explained_and_events_polled() -> None:
    with pair() as (left, right):
        know(left, right)
        left.notify(right.name, b"").wait(5)
        explanation = left.explain(right.name)
        assert explanation.peer == right.name and explanation.incarnation == right.incarnation
        chosen = [path for path in explanation.paths if path.chosen]
        assert [path.backend for path in chosen] == ["loopback"]
        assert chosen[0].connected and chosen[0].latency >= 0
        assert right.name in str(explanation)
        assert left.poll_peer_event().kind == "joined"


def test_options_by_name() -> None:
    agent = kvxfer.Agent(
        "options-by-name",
        backends=["tcp"],
        listen="127.0.0.1:0",
        heartbeat=0.25,
        backend={"tcp": {"streams": 3, "addresses": ["127.0.0.1"]}},
    )
    with agent:
        assert agent.listen_address.startswith("127.0.0.1:")


def test_the_environment_is_read_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVXFER_NAME", "named-by-environment")
    with kvxfer.Agent() as agent:
        assert agent.name == "named-by-environment"
    with pytest.raises(kvxfer.InvalidArgument, match="name"):
        kvxfer.Agent(environment=False)
    monkeypatch.setenv("KVXFER_TCP_STREAMS", "many")
    with pytest.raises(kvxfer.InvalidArgument, match="KVXFER_TCP_STREAMS"):
        kvxfer.Agent("x")

"""What the drop-in does where NIXL crashes, fails, or does nothing of the kind."""

import gc
import logging
import pickle
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kvxfer.compat.nixl import api, bindings, transfers
from nixl_record import Pair, Recorder, descs, notifications, run_to_end, wait_until

NIXL = SimpleNamespace(api=api, bindings=bindings, is_drop_in=True)
DRAM = bindings.DRAM_SEG


@pytest.fixture
def pair() -> Pair:
    return Pair(NIXL, Recorder(NIXL), capture_telemetry=True)


def test_an_index_beyond_the_end_is_an_error() -> None:
    for made in (
        bindings.nixlXferDList(DRAM, [(1, 2, 3)]),
        bindings.nixlRegDList(DRAM, [(1, 2, 3, "")]),
        bindings.nixlRemoteDList(DRAM, [(1, 2, 3, "a")]),
    ):
        assert len(list(made)) == 1
        with pytest.raises(IndexError):
            made[1]
        with pytest.raises(IndexError):
            made[1] = made[0]


def test_a_size_makes_zeros() -> None:
    made = bindings.nixlXferDList(DRAM, 2)
    assert list(made) == [(0, 0, 0)] * 2


@pytest.mark.parametrize("kind", ["nixlXferDList", "nixlRegDList"])
def test_a_damaged_serialized_list_is_refused(kind: str) -> None:
    row = (1, 2, 3) if kind == "nixlXferDList" else (1, 2, 3, b"meta")
    made = getattr(bindings, kind)(DRAM, [row, row])
    state = made.__getstate__()
    for length in range(len(state)):
        with pytest.raises(ValueError):
            made.__setstate__(state[:length])
    assert list(made) == [row, row]


def test_lengths_that_wrap_around(pair: Pair) -> None:
    here, there = (descs(NIXL, [(p, 2**64 - 16, 0)]) for p in (pair.pa, pair.pb))
    with pytest.raises(bindings.nixlNotFoundError):
        pair.a.initialize_xfer("WRITE", here, there, "b")
    with pytest.raises(bindings.nixlNotFoundError):
        pair.a.prep_xfer_dlist("", here)


def test_released_handles(pair: Pair) -> None:
    local = pair.a.prep_xfer_dlist("", pair.at_a((0, 64)))
    remote = pair.a.prep_xfer_dlist("b", pair.at_b((0, 64)))
    handle = pair.a.make_prepped_xfer("WRITE", local, [0], remote, [0])
    handle.release()
    local.release()
    for call in (pair.a.transfer, pair.a.check_xfer_state, pair.a.get_xfer_telemetry):
        with pytest.raises(bindings.nixlInvalidParamError):
            call(handle)
    with pytest.raises(bindings.nixlInvalidParamError):
        pair.a.make_prepped_xfer("WRITE", local, [0], remote, [0])
    for wrong in (0, 10**6, remote._handle):
        with pytest.raises(bindings.nixlInvalidParamError):
            pair.a.agent.releaseXferReq(wrong)


def test_handles_do_not_pile_up(pair: Pair) -> None:
    for _ in range(100):
        handle = pair.a.initialize_xfer("WRITE", pair.at_a((0, 64)), pair.at_b((0, 64)), "b")
        run_to_end(pair.a, handle)
    del handle
    gc.collect()
    assert not pair.a.agent._kvx_handles._objects


def test_a_transfer_under_way_is_cancelled(pair: Pair) -> None:
    size = 64 << 20
    ours, theirs = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    for agent, memory in ((pair.a, ours), (pair.b, theirs)):
        agent.register_memory([(memory.ctypes.data, size, 0, "")], "DRAM")
    pair.a.add_remote_agent(pair.b.get_agent_metadata())
    here, there = (descs(NIXL, [(m.ctypes.data, size, 0)]) for m in (ours, theirs))
    handle = pair.a.initialize_xfer("WRITE", here, there, "b", b"never told")
    if pair.a.transfer(handle) == "PROC":
        handle.release()
        then = int(np.count_nonzero(theirs))
        time.sleep(0.05)
        assert int(np.count_nonzero(theirs)) == then
        if then < size:
            assert notifications(pair.b, 1, 0.05) == {}


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
@pytest.mark.parametrize("form", ["lists", "prepared", "strips"])
def test_of_repeated_destinations_the_last_stays(pair: Pair, operation: str, form: str) -> None:
    pair.b_memory[:] = np.arange(pair.SIZE) % 241
    picked, into = [3, 1, 4, 0], [2, 5, 2, 5]
    ours, theirs = (picked, into) if operation == "WRITE" else (into, picked)
    source = (pair.a_memory if operation == "WRITE" else pair.b_memory)[: 8 * 64].copy()
    if form == "lists":
        here, there = (
            at(*[(64 * i, 64) for i in ids]) for at, ids in ((pair.at_a, ours), (pair.at_b, theirs))
        )
        handle = pair.a.initialize_xfer(operation, here, there, "b", b"done")
    else:
        sides = []
        for name, p in (("", pair.pa), ("b", pair.pb)):
            strip = np.array([[p, 64, 0, 64, 4], [p + 256, 64, 0, 64, 4]], dtype=np.uint64)
            rows = [(p + 64 * i, 64, 0) for i in range(8)]
            sides.append(
                pair.a.prep_xfer_dlist(name, rows if form == "prepared" else strip, "DRAM")
            )
        handle = pair.a.make_prepped_xfer(operation, sides[0], ours, sides[1], theirs, b"done")
    assert run_to_end(pair.a, handle) == "DONE"
    target = (pair.b_memory if operation == "WRITE" else pair.a_memory)[: 8 * 64].reshape(8, 64)
    assert (target[2] == source[4 * 64 : 5 * 64]).all()
    assert (target[5] == source[0:64]).all()
    assert notifications(pair.b, 1) == {"a": [b"done"]}


def test_100000_descriptors_cost_no_python_each(pair: Pair) -> None:
    count = 100_000
    memory = [np.zeros(count * 16, dtype=np.uint8) for _ in range(2)]
    for agent, mine in zip((pair.a, pair.b), memory):
        agent.register_memory([(mine.ctypes.data, mine.nbytes, 0, "")], "DRAM")
    pair.a.add_remote_agent(pair.b.get_agent_metadata())
    rows = [
        np.column_stack(
            (m.ctypes.data + 16 * np.arange(count), np.full(count, 8), np.zeros(count, int))
        )
        for m in memory
    ]
    best = 1.0
    for _ in range(5):
        begin = time.thread_time()
        here, there = (pair.a.get_xfer_descs(r, "DRAM") for r in rows)
        handle = pair.a.initialize_xfer("WRITE", here, there, "b")
        pair.a.transfer(handle)
        best = min(best, time.thread_time() - begin)
        while pair.a.check_xfer_state(handle) != "DONE":
            time.sleep(0.001)
    # 5 ms on a quiet machine; one Python step for each would be ten times as much.
    assert best < 0.03, f"{best * 1e3:.1f} ms"


def test_a_backend_can_be_named_for_a_notification(pair: Pair) -> None:
    pair.a.send_notif("b", b"x", backend="UCX")
    assert notifications(pair.b, 1) == {"a": [b"x"]}


def test_a_notification_may_be_long_but_not_without_end(pair: Pair) -> None:
    long = bytes(5 << 20)
    pair.a.send_notif("b", long)
    handle = pair.a.initialize_xfer(
        "WRITE", pair.at_a((0, 64)), pair.at_b((0, 64)), "b", long + b"2"
    )
    told = threading.Thread(target=lambda: run_to_end(pair.a, handle))
    told.start()
    assert notifications(pair.b, 2, 20) == {"a": [long, long + b"2"]}
    told.join()
    with pytest.raises(bindings.nixlInvalidParamError):
        pair.a.send_notif("b", bytes((64 << 20) + 1))


def test_every_name_of_a_network_backend_is_kvxfer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvxfer.compat.nixl")
    one = Pair(NIXL, Recorder(NIXL), backends=["LIBFABRIC"])
    other = api.nixl_agent("c", api.nixl_agent_config(backends=["UCX", "UCX_MO"]))
    other.add_remote_agent(one.b.get_agent_metadata())
    other.send_notif("b", b"of another backend")
    assert notifications(one.b, 1) == {"c": [b"of another backend"]}
    handle = one.a.initialize_xfer("WRITE", one.at_a((0, 64)), one.at_b((0, 64)), "b")
    run_to_end(one.a, handle)
    run_to_end(one.a, handle)
    assert one.a.query_xfer_backend(handle) == "LIBFABRIC"
    assert caplog.text.count("backend LIBFABRIC is kvxfer") == 2
    assert caplog.text.count("agent a reaches agent b over") == 1


@pytest.mark.parametrize("name", ["GDS", "GDS_MT", "POSIX", "HF3FS", "OBJ"])
def test_storage_is_not_there(name: str, caplog: pytest.LogCaptureFixture) -> None:
    made = api.nixl_agent("a", api.nixl_agent_config(backends=[name]))
    assert made.backends == {} and name in caplog.text
    with pytest.raises(bindings.nixlNotFoundError, match="storage"):
        made.create_backend(name)


def test_no_handlers_are_installed() -> None:
    assert not logging.getLogger("kvxfer.compat.nixl").handlers
    assert not logging.getLogger("nixl").handlers


def test_memory_in_use_is_not_let_go(pair: Pair) -> None:
    """A list prepared of memory that is deregistered is refused when it is posted."""
    listed = pair.a.register_memory([(pair.pa + 64, 64, 0, "")], "DRAM")
    handle = pair.a.initialize_xfer("WRITE", pair.at_a((64, 64)), pair.at_b((0, 64)), "b")
    pair.a.deregister_memory(listed)
    assert run_to_end(pair.a, handle) == "DONE"  # the whole of it is still registered
    pair.a.deregister_memory(bindings.nixlRegDList(DRAM, [(pair.pa, pair.SIZE, 0, "")]))
    with pytest.raises(bindings.nixlInvalidParamError):
        pair.a.transfer(handle)


def test_memory_deregistered_at_the_other_side(pair: Pair) -> None:
    handle = pair.a.initialize_xfer("WRITE", pair.at_a((64, 64)), pair.at_b((0, 64)), "b")
    pair.b.deregister_memory(bindings.nixlRegDList(DRAM, [(pair.pb, pair.SIZE, 0, "")]))
    with pytest.raises(bindings.nixlBackendError, match="deregistered"):
        run_to_end(pair.a, handle)


def test_all_calls_at_once(pair: Pair) -> None:
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for _ in range(20):
                listed = pair.a.register_memory([(pair.pa + i * 64, 64, 0, "")], "DRAM")
                pair.b.add_remote_agent(pair.a.get_agent_metadata())
                assert pair.a.check_remote_metadata("b")
                pair.a.prep_xfer_dlist("b", pair.at_b((i, 8))).release()
                pair.a.make_connection("b")
                pair.a.get_new_notifs()
                pair.a.deregister_memory(listed)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []


def test_one_handle_in_two_threads(pair: Pair) -> None:
    """Posted by whoever comes first; the other is told so."""
    handle = pair.a.initialize_xfer("WRITE", pair.at_a((0, 64)), pair.at_b((0, 64)), "b")
    outcomes: list[Any] = []

    def work() -> None:
        for _ in range(200):
            try:
                outcomes.append(pair.a.transfer(handle))
            except bindings.nixlRepostActiveError:
                outcomes.append("active")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert set(outcomes) <= {"DONE", "PROC", "active"} and len(outcomes) == 400
    assert wait_until(lambda: pair.a.check_xfer_state(handle) == "DONE")


@pytest.mark.parametrize("what", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_ends_the_posting_leaves_nothing_posted(
    pair: Pair, what: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    to_b = pair.a.initialize_xfer("WRITE", pair.at_a((0, 64)), pair.at_b((0, 64)), "b")
    to_itself = pair.a.initialize_xfer("WRITE", pair.at_a((0, 64)), pair.at_a((64, 64)), "a")
    for handle in (to_b, to_itself):
        run_to_end(pair.a, handle)

    def fail(*_: Any, **__: Any) -> None:
        raise what

    with monkeypatch.context() as patched:
        patched.setattr(transfers.Transfer, "_move", fail)
        patched.setattr(transfers._kvxfer, "copy_blocks", fail)
        for handle in (to_b, to_itself):
            with pytest.raises(what):
                pair.a.transfer(handle)
            with pytest.raises(bindings.nixlNotPostedError):
                pair.a.check_xfer_state(handle)
    for handle in (to_b, to_itself):
        assert run_to_end(pair.a, handle) == "DONE"


def test_handles_of_another_agent(pair: Pair) -> None:
    of_a = pair.a.prep_xfer_dlist("", pair.at_a((0, 64)))
    of_b = pair.b.prep_xfer_dlist("", pair.at_b((0, 64)))
    remote = pair.a.prep_xfer_dlist("b", pair.at_b((0, 64)))
    pair.a.make_prepped_xfer("WRITE", of_a, [0], remote, [0])
    with pytest.raises(bindings.nixlInvalidParamError):
        pair.a.make_prepped_xfer("WRITE", of_b, [0], remote, [0])
    handle = pair.b.initialize_xfer("WRITE", pair.at_b((0, 64)), pair.at_a((0, 64)), "a")
    with pytest.raises(bindings.nixlInvalidParamError):
        pair.a.transfer(handle)
    with pytest.raises(bindings.nixlInvalidParamError):
        pair.a.agent.getBackendParams(pair.b.backends["UCX"])


class _Sides:
    """Eight blocks of 64 bytes prepared on both sides, as rows or as one strip each."""

    def __init__(self, pair: Pair, form: str = "rows") -> None:
        self.a = pair.a
        self.sides = []
        for name, p in (("", pair.pa), ("b", pair.pb)):
            strip = np.array([[p, 64, 0, 64, 8]], dtype=np.uint64)
            rows = [(p + 64 * i, 64, 0) for i in range(8)]
            self.sides.append(
                pair.a.prep_xfer_dlist(name, rows if form == "rows" else strip, "DRAM")
            )

    def make(self, ours: Any, theirs: Any) -> Any:
        return self.a.make_prepped_xfer("WRITE", self.sides[0], ours, self.sides[1], theirs)


@pytest.mark.parametrize("form", ["rows", "strip"])
@pytest.mark.parametrize(
    ("index", "dtype"),
    [
        (8, "int32"),
        (-1, "int8"),
        (-1, "int64"),
        (-(2**32) + 3, "int64"),
        (2**32 + 3, "int64"),
        (2**32 + 3, "uint64"),
        (2**64 - 1, "uint64"),
        (2**32 - 1, "uint32"),
        (2**32 + 3, ">i8"),
    ],
)
def test_indices_do_not_wrap_around(pair: Pair, form: str, index: int, dtype: str) -> None:
    wrong = np.array([0, index], dtype=dtype)
    for given in ((wrong, [0, 1]), ([0, 1], wrong)):
        with pytest.raises(bindings.nixlInvalidParamError):
            _Sides(pair, form).make(*given)


@pytest.mark.parametrize(
    "wrong", [np.array([3.9]), np.array([np.nan]), np.array([True]), np.array([None])]
)
def test_indices_are_integers(pair: Pair, wrong: np.ndarray) -> None:
    with pytest.raises(RuntimeError, match="expected integers"):
        _Sides(pair).make(wrong, [0])


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32", "int64", "uint64", ">i4"])
@pytest.mark.parametrize("form", ["rows", "strip"])
def test_indices_of_every_integer_type(pair: Pair, form: str, dtype: str) -> None:
    pair.b_memory[:] = 0
    given = np.array([5, 0, 2, 0], dtype=dtype)
    handle = _Sides(pair, form).make(given[::2], np.array([7, 7], dtype=dtype))
    given[:] = 1  # the caller may use its array again
    assert run_to_end(pair.a, handle) == "DONE"
    there = pair.b_memory.reshape(-1, 64)
    assert (there[7] == pair.a_memory[2 * 64 : 3 * 64]).all()
    assert np.flatnonzero(there.any(axis=1)).tolist() == [7]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("form", ["lists", "prepared"])
def test_memory_of_a_copy_within_an_agent_is_looked_at_again(
    pair: Pair, form: str, side: int
) -> None:
    more = np.zeros(4096, dtype=np.uint8)
    listed = pair.a.register_memory([(more.ctypes.data, more.nbytes, 3, "")], "DRAM")
    sides = [descs(NIXL, [(more.ctypes.data, 64, 3)]), pair.at_a((0, 64))]
    if side:
        sides.reverse()
    if form == "lists":
        handle = pair.a.initialize_xfer("WRITE", *sides, "a", b"told")
    else:
        ours, theirs = (pair.a.prep_xfer_dlist(n, s) for n, s in zip(("", "a"), sides))
        handle = pair.a.make_prepped_xfer("WRITE", ours, [0], theirs, [0], b"told")
    assert pair.a.transfer(handle) == "DONE"
    assert notifications(pair.a, 1) == {"a": [b"told"]}
    pair.a.deregister_memory(listed)
    with pytest.raises(bindings.nixlInvalidParamError, match="deregistered"):
        pair.a.transfer(handle)
    with pytest.raises(bindings.nixlNotPostedError):
        pair.a.check_xfer_state(handle)
    assert notifications(pair.a, 1, 0.05) == {}


def test_an_agent_does_not_copy_device_memory_within_itself(pair: Pair) -> None:
    # Of no bytes, for which no device is needed.
    pair.a.register_memory([(1 << 40, 0, 0, "")], "VRAM")
    there = descs(NIXL, [(1 << 40, 0, 0)], "VRAM_SEG")
    for sides in ((there, pair.at_a((0, 0))), (pair.at_a((0, 0)), there), (there, there)):
        with pytest.raises(bindings.nixlNotSupportedError):
            pair.a.initialize_xfer("WRITE", *sides, "a")


class _Named:
    def __reduce__(self) -> Any:
        return print, ("called",)


def test_serialized_lists_name_nothing_else(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    there_and_back = pair.a.get_serialized_descs, pair.a.deserialize_descs
    for good in (
        pair.at_a((0, 64)),
        bindings.nixlRegDList(DRAM, [(1, 2, 3, b"m")]),
        [(1, 2, 3), "text", {"a": b"b"}, None, 1.5],
    ):
        assert there_and_back[1](there_and_back[0](good)) == good
    for wrong in (_Named(), [_Named()], api.nixl_agent, bindings.nixlXferDList.__init__):
        with pytest.raises(pickle.UnpicklingError):
            pair.a.deserialize_descs(pickle.dumps(wrong))
    assert capsys.readouterr().out == ""


def test_who_asks_moves_the_transfer_on(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    class Active:
        error = None

        def done(self) -> bool:
            return False

        def _drive(self, seconds: float) -> bool:
            asked.append(seconds)
            return len(asked) > 2

        def cancel(self) -> None: ...

    monkeypatch.setattr(transfers.Transfer, "_move", lambda *_: Active())
    handle = pair.a.initialize_xfer("WRITE", pair.at_a((0, 64)), pair.at_b((0, 64)), "b")
    assert pair.a.transfer(handle) == "PROC" and asked == []
    assert [pair.a.check_xfer_state(handle) for _ in range(2)] == ["PROC"] * 2
    assert len(asked) == 2 and 0 < max(asked) <= 0.001


def test_making_a_transfer_of_prepared_lists_is_fast(pair: Pair) -> None:
    sides, indices = _Sides(pair), np.arange(60, dtype=np.int32) % 8
    best = 1.0
    for _ in range(20):
        begin = time.thread_time()
        for _ in range(50):
            sides.make(indices, indices)
        best = min(best, (time.thread_time() - begin) / 50)
    # 7 µs on a quiet machine.
    assert best < 60e-6, f"{best * 1e6:.1f} µs"

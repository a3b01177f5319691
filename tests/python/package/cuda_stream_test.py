"""A transfer begins after what is in a CUDA stream, and a stream goes on after a transfer."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import kvxfer
import numpy as np
import pytest
from cuda_standin import (
    ILLEGAL_ADDRESS,
    CudaArray,
    CudaEvent,
    CudaMemory,
    CudaStream,
    current,
    hooks,
    let_go_of_all,
    needs_standin,
    wait_until,
)
from pairs import know, name, pair, run_well

pytestmark = needs_standin

BLOCKS, BLOCK = 16, 4096
IDS = list(range(BLOCKS))


class Rig:
    """Two agents with a cache each, in GPU memory."""

    def __init__(self, left: kvxfer.Agent, right: kvxfer.Agent) -> None:
        self.left, self.right = left, right
        self.ours, self.theirs = CudaArray((BLOCKS, BLOCK)), CudaArray((BLOCKS, BLOCK))
        tensor = kvxfer.KvTensor("BHNC", [BLOCKS, 1, 1, BLOCK], [BLOCK, BLOCK, BLOCK, 1])
        layout = kvxfer.KvLayout.from_tensors(
            kvxfer.KvModel(1, 1, BLOCK, 0, "bytes"), kvxfer.KvShard(1), [tensor]
        )
        for agent, array in ((left, self.ours), (right, self.theirs)):
            agent.register_memory(array)
            agent.register_kv_cache("kv", layout, [array])
        know(left, right)
        self.regions = [kvxfer.PagedRegion.of(array) for array in (self.ours, self.theirs)]

    def write(self, **options: Any) -> kvxfer.Transfer:
        return self.left.write(self.right.name, *self.regions, IDS, IDS, **options)

    def write_rows(self, **options: Any) -> kvxfer.Transfer:
        return self.left.write(
            self.right.name,
            [(self.ours.address, self.ours.nbytes)],
            [(self.theirs.address, self.theirs.nbytes)],
            **options,
        )

    def read(self, **options: Any) -> kvxfer.Transfer:
        """By the right, so that data goes the same way."""
        return self.right.read(self.left.name, *reversed(self.regions), IDS, IDS, **options)

    def write_blocks(self, **options: Any) -> kvxfer.Transfer:
        return self.left.write_blocks([self.right.name], "kv", IDS, IDS, BLOCKS, **options)

    def read_blocks(self, **options: Any) -> kvxfer.Transfer:
        return self.right.read_blocks([self.left.name], "kv", IDS, IDS, BLOCKS, **options)

    def notify(self, **options: Any) -> kvxfer.Transfer:
        return self.left.notify(self.right.name, b"", order="any", **options)

    def pass_by(self) -> None:
        """What is posted now is done: whatever was posted before could have begun too."""
        for agent, peer in ((self.left, self.right), (self.right, self.left)):
            for _ in range(3):
                agent.notify(peer.name, b"by", order="any").wait(20)

    def landed(self) -> bool:
        return bool((self.theirs.content() == 7).all())


@pytest.fixture(params=["cuda_ipc", "tcp"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    before = hooks().kvxfer_standin_default_stream_uses()
    backends = ["tcp"] if request.param == "tcp" else ["cuda_ipc", "tcp"]
    with pair(backends=backends) as (left, right):
        yield Rig(left, right)
        let_go_of_all()
    assert hooks().kvxfer_standin_default_stream_uses() == before


@pytest.fixture
def stream() -> Iterator[CudaStream]:
    stream = CudaStream()
    yield stream
    stream.let_go()


MOVES = ["write", "write_rows", "read", "write_blocks", "read_blocks"]


@pytest.mark.parametrize("call", MOVES)
def test_it_begins_after_what_is_in_the_stream(rig: Rig, stream: CudaStream, call: str) -> None:
    ready = CudaMemory(rig.ours.nbytes)
    ready.bytes()[:] = 7
    stream.hold()
    # What a kernel would: the source is there only then.
    stream.copy(rig.ours.address, ready.address, ready.size)
    transfer = getattr(rig, call)(stream=stream)
    rig.pass_by()
    assert not transfer.done() and not rig.theirs.content().any()
    stream.let_go()
    transfer.wait(20)
    assert rig.landed()


@pytest.mark.parametrize("call", [*MOVES, "notify"])
def test_it_begins_after_an_event(rig: Rig, stream: CudaStream, call: str) -> None:
    event = CudaEvent()
    stream.hold()
    event.record(stream)
    transfer = getattr(rig, call)(event=event)
    rig.pass_by()
    assert not transfer.done()
    stream.let_go()
    transfer.wait(20)


def test_a_stream_and_an_event_are_both_waited_for(rig: Rig, stream: CudaStream) -> None:
    other, event = CudaStream(), CudaEvent()
    for each in (stream, other):
        each.hold()
    event.record(other)
    transfer = rig.write(stream=stream, event=event.cuda_event)
    stream.let_go()
    wait_until(stream.idle)
    rig.pass_by()
    assert not transfer.done()
    other.let_go()
    transfer.wait(20)


def test_a_ready_flag_and_a_stream_are_both_waited_for(rig: Rig, stream: CudaStream) -> None:
    flag = kvxfer.ReadyFlag()
    stream.hold()
    transfer = rig.write_blocks(stream=stream, ready=flag)
    flag.set()
    rig.pass_by()
    assert not transfer.done()
    stream.let_go()
    transfer.wait(20)


def test_a_notification_waits(rig: Rig, stream: CudaStream) -> None:
    stream.hold()
    transfer = rig.notify(stream=stream)
    rig.pass_by()
    told = [rig.right.wait_notification(20).payload for _ in range(3)]
    assert told == [b"by"] * 3 and not transfer.done()
    stream.let_go()
    transfer.wait(20)
    assert rig.right.wait_notification(20).payload == b""


def test_a_coroutine_waits_for_the_stream(rig: Rig, stream: CudaStream) -> None:
    async def move() -> None:
        stream.hold()
        transfer = rig.write(stream=stream)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(_await(transfer))), 0.05)
        stream.let_go()
        await transfer

    async def _await(transfer: kvxfer.Transfer) -> None:
        await transfer

    asyncio.run(move())


# --- What may be given ----------------------------------------------------------------------------

STREAMS: dict[str, Callable[[CudaStream], Any]] = {
    "a number": lambda stream: stream.cuda_stream,
    "a number of numpy": lambda stream: np.uint64(stream.cuda_stream),
    "as torch": lambda stream: stream,
    "by protocol": lambda stream: _Protocol(stream.cuda_stream),
    "by protocol, as a property": lambda stream: SimpleNamespace(
        __cuda_stream__=(0, stream.cuda_stream)
    ),
}


class _Protocol:
    def __init__(self, handle: int, **more: Any) -> None:
        self._handle = handle
        self.__dict__ |= more

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


@pytest.mark.parametrize("given", STREAMS)
def test_streams_of_all_kinds(rig: Rig, stream: CudaStream, given: str) -> None:
    stream.hold()
    transfer = rig.write(stream=STREAMS[given](stream))
    later = CudaStream()
    transfer.stream_wait(STREAMS[given](later))
    rig.pass_by()
    assert not transfer.done() and not later.idle()
    stream.let_go()
    transfer.wait(20)
    wait_until(later.idle)


def test_events_of_both_kinds(rig: Rig, stream: CudaStream) -> None:
    for number in (False, True):
        event = CudaEvent()
        stream.hold()
        event.record(stream)
        transfer = rig.write(event=event.cuda_event if number else event)
        rig.pass_by()
        assert not transfer.done()
        stream.let_go()
        transfer.wait(20)


@pytest.mark.parametrize(
    "given",
    [
        2,
        SimpleNamespace(cuda_stream=2, device_index=0),
        SimpleNamespace(cuda_stream=2, device=SimpleNamespace(index=0)),
        _Protocol(2, device_id=0),
    ],
)
def test_the_default_stream_of_the_thread(rig: Rig, given: Any) -> None:
    """An object says of which device; a number means that of the current one."""
    with current(0):
        rig.write(stream=given).wait(20)
    if given == 2:
        with pytest.raises(kvxfer.InvalidArgument, match="this thread has none"):
            rig.write(stream=given)
    else:
        rig.write(stream=given).wait(20)


def test_the_legacy_default_stream() -> None:
    """1, and 0 of an object, which is torch's when no other was made current. In a process of its
    own, for elsewhere the stand-in ends who uses it."""
    run_well(
        """
        import os
        os.environ["KVXFER_STANDIN_NO_DEFAULT_STREAM"] = "0"
        from types import SimpleNamespace
        import kvxfer
        from cuda_standin import current, hooks
        left, right = (kvxfer.Agent(each, backends=["tcp"]) for each in ("left", "right"))
        left.add_peer(right.metadata())
        uses = hooks().kvxfer_standin_default_stream_uses
        with current(0):
            left.notify("right", b"", stream=1).wait(20)
        assert uses() == 1
        torch_s = SimpleNamespace(cuda_stream=0, device_index=1)
        left.notify("right", b"", stream=torch_s).wait(20)
        assert uses() == 2
        class Protocol:
            device_id = 0
            def __cuda_stream__(self):
                return 0, 0
        left.notify("right", b"", stream=Protocol()).wait(20)
        assert uses() == 3
        """
    )


BAD = [
    ("stream", 0, ValueError, "stream is 0, which could be either .*expected 1 for the legacy"),
    ("stream", -1, ValueError, "stream is -1; expected a handle of CUDA, from 1"),
    ("stream", 2**64, ValueError, "stream is 18446744073709551616; expected a handle of CUDA"),
    ("stream", True, TypeError, "stream is a bool; expected a cudaStream_t as an int, an object"),
    ("stream", "main", TypeError, "stream is a str; expected a cudaStream_t as an int, an object"),
    ("stream", 1.5, TypeError, "stream is a float; expected a cudaStream_t"),
    (
        "stream",
        SimpleNamespace(cuda_stream="x"),
        TypeError,
        "stream.cuda_stream is a str; expected",
    ),
    ("stream", SimpleNamespace(cuda_stream=-3), ValueError, "stream is -3; expected a handle"),
    ("stream", SimpleNamespace(__cuda_stream__=7), TypeError, "__cuda_stream__ gives 7; expected"),
    ("stream", SimpleNamespace(__cuda_stream__=(0, "x")), TypeError, r"__cuda_stream__ gives \(0"),
    ("stream", 12345, ValueError, "CUDA stream 0x3039 is no stream of this process, or was destr"),
    ("event", 0, ValueError, "event is 0, which is none; expected a cudaEvent_t, or None"),
    (
        "event",
        False,
        TypeError,
        "event is a bool; expected a cudaEvent_t as an int, an object with",
    ),
    ("event", -1, ValueError, "event is -1; expected a handle"),
    ("event", "e", TypeError, "event is a str; expected a cudaEvent_t as an int, an object with"),
    ("event", 12345, ValueError, "CUDA event 0x3039 cannot be waited for"),
    ("event", SimpleNamespace(cuda_event=None), TypeError, "event.cuda_event is a NoneType; exp"),
]


def test_what_is_no_stream_or_event(rig: Rig) -> None:
    for argument, given, error, text in BAD:
        for call in [*MOVES, "notify"]:
            with current(0), pytest.raises(error, match=text):
                getattr(rig, call)(**{argument: given})


def test_what_no_stream_waits_for(rig: Rig, stream: CudaStream) -> None:
    stream.hold()
    transfer = rig.write(stream=stream)
    none = ("stream", None, TypeError, "stream is None; expected a CUDA stream")
    for argument, given, error, text in [*BAD, none]:
        if argument == "stream":
            with current(0), pytest.raises(error, match=text):
                transfer.stream_wait(given)
    stream.let_go()
    transfer.wait(20)


def test_an_event_that_was_not_recorded(rig: Rig) -> None:
    with pytest.raises(
        kvxfer.InvalidArgument, match="event.cuda_event is 0; expected an event that was recorded"
    ):
        rig.write(event=CudaEvent())


def test_a_stream_that_was_destroyed(rig: Rig, stream: CudaStream) -> None:
    handle = stream.cuda_stream
    stream.destroy()
    with pytest.raises(kvxfer.InvalidArgument, match="is no stream of this process, or was destr"):
        rig.write(stream=handle)


def test_an_error_of_the_object_s_own(rig: Rig) -> None:
    class Broken:
        @property
        def cuda_stream(self) -> int:
            raise RuntimeError("its device is lost")

    with pytest.raises(RuntimeError, match="its device is lost"):
        rig.write(stream=Broken())


def test_a_stream_that_is_being_captured(rig: Rig, stream: CudaStream) -> None:
    stream.hold()
    transfer = rig.write(stream=stream)
    stream.let_go()
    transfer.wait(20)
    held = CudaStream()
    held.hold()
    active = rig.write(stream=held)
    stream.capture(True)
    try:
        for call in (lambda: rig.write(stream=stream), lambda: active.stream_wait(stream)):
            with pytest.raises(kvxfer.InvalidArgument, match="being captured into a CUDA graph"):
                call()
    finally:
        stream.capture(False)
    held.let_go()
    active.wait(20)


# --- A stream waits for a transfer ----------------------------------------------------------------


@pytest.mark.parametrize("call", MOVES)
def test_what_follows_in_the_stream_sees_the_bytes(rig: Rig, stream: CudaStream, call: str) -> None:
    rig.ours.content()[:] = 7
    first = CudaStream()
    first.hold()
    transfer = getattr(rig, call)(stream=first)
    transfer.stream_wait(stream)
    seen = CudaMemory(rig.theirs.nbytes)
    stream.copy(seen.address, rig.theirs.address, seen.size)
    rig.pass_by()
    assert not stream.idle() and not seen.bytes().any()
    first.let_go()
    wait_until(stream.idle)
    assert (seen.bytes() == 7).all()
    assert transfer.error is None and transfer.done()


def test_a_stream_goes_on_however_the_transfer_ended(rig: Rig, stream: CudaStream) -> None:
    flag = kvxfer.ReadyFlag()
    transfer = rig.write(ready=flag)
    transfer.stream_wait(stream)
    assert not stream.idle()
    transfer.cancel()
    wait_until(stream.idle)
    assert isinstance(transfer.error, kvxfer.Cancelled)


def test_a_transfer_that_has_ended_holds_nothing_up(rig: Rig, stream: CudaStream) -> None:
    transfer = rig.write()
    transfer.wait(20)
    transfer.stream_wait(stream)
    assert stream.idle()
    rig.left.close()
    transfer.stream_wait(stream)
    assert stream.idle()


def test_closing_the_agent_lets_the_stream_go_on(stream: CudaStream) -> None:
    with pair(backends=["cuda_ipc", "tcp"]) as (left, right):
        transfer = Rig(left, right).write(ready=kvxfer.ReadyFlag())
        transfer.stream_wait(stream)
        assert not stream.idle()
        left.close()
        wait_until(stream.idle)
    assert isinstance(transfer.error, kvxfer.Cancelled)


# --- Events are kept ------------------------------------------------------------------------------


def test_an_event_is_kept_until_the_end(rig: Rig, stream: CudaStream) -> None:
    """Its last name may go: destroyed before, it would be waited for no more, or another's."""
    event = CudaEvent()
    stream.hold()
    event.record(stream)
    kept = weakref.ref(event)
    transfer = rig.write(event=event)
    del event
    gc.collect()
    assert kept() is not None
    rig.pass_by()
    assert not transfer.done()
    stream.let_go()
    transfer.wait(20)
    # Those of transfers that have ended are let go of as others come.
    for _ in range(40):
        other = CudaEvent()
        other.record(stream)
        rig.notify(event=other).wait(20)
    assert kept() is None


def test_events_do_not_outlive_the_agent(stream: CudaStream) -> None:
    with kvxfer.Agent(name("left"), backends=["tcp"]) as left:
        with kvxfer.Agent(name("right"), backends=["tcp"]) as right:
            left.add_peer(right.metadata())
            event = CudaEvent()
            event.record(stream)
            kept = weakref.ref(event)
            left.notify(right.name, b"", event=event)
            del event
    assert kept() is None


def test_work_that_fails_fails_the_transfer() -> None:
    """In a process of its own: the context is ruined for good."""
    run_well(
        f"""
        import kvxfer
        from cuda_standin import CudaMemory, CudaStream, hooks
        left, right = (kvxfer.Agent(each, backends=["tcp"]) for each in ("left", "right"))
        left.add_peer(right.metadata())
        memory, stream = CudaMemory(64), CudaStream()
        hooks().kvxfer_standin_pause(1)
        hooks().kvxfer_standin_fail_async(1, {ILLEGAL_ADDRESS})
        stream.put(memory, 1)
        transfer = left.notify("right", b"", stream=stream)
        hooks().kvxfer_standin_pause(0)
        try:
            transfer.wait(20)
        except kvxfer.Error as error:
            assert "CUDA_ERROR_ILLEGAL_ADDRESS" in str(error), error
        else:
            raise SystemExit("it is done")
        """
    )

"""The queue of events: what a program asks for comes once, in order, and nothing else."""

from __future__ import annotations

import queue
import select
import threading

import kvxfer
import pytest
from pairs import know, pair


def _readable(fd: int, seconds: float) -> bool:
    return bool(select.select([fd], [], [], seconds)[0])


def test_events_come_in_order_with_their_kinds() -> None:
    with pair() as (left, right):
        know(left, right)
        know(right, left)
        right.notify(left.name, b"one").wait(5)
        end = left.notify(right.name, b"x", user_word=2**64 - 1)
        end.wait(5)
        assert {event.kind for event in left.wait_events(5, ["peer"])} == {"joined"}
        told, ended = left.poll_events()
        assert isinstance(told, kvxfer.Notification) and told.payload == b"one"
        assert isinstance(ended, kvxfer.TransferEnd)
        assert ended.user_word == 2**64 - 1
        assert ended.transfer.id == end.id and ended.transfer.state == "done"
        assert left.poll_events() == []


def test_what_nobody_asked_for_stays() -> None:
    with pair() as (left, right):
        know(left, right)
        know(right, left)
        fd = left.event_fd(["transfer_end"])
        right.notify(left.name, b"one").wait(5)
        left.notify(right.name, b"no end of this").wait(5)
        assert left.poll_events(["transfer_end", "kv"]) == []
        assert not _readable(fd, 0)
        with pytest.raises(kvxfer.TimedOut):
            left.wait_events(0.02, ["kv"])
        left.notify(right.name, b"x", user_word=1)
        assert _readable(fd, 5)
        (end,) = left.poll_events(["transfer_end"])
        assert end.user_word == 1
        assert not _readable(fd, 0)
        assert left.poll_notification().payload == b"one"


def test_one_descriptor_covers_all() -> None:
    with pair() as (left, right):
        know(left, right)
        fd = left.event_fd()
        assert left.event_fd() == fd != left.event_fd(["kv", "peer"])
        assert left.notification_fd == left.event_fd(["notification"])
        left.notify(right.name, b"x", user_word=3)
        seen: list[int] = []
        while not seen:
            assert _readable(fd, 5)
            ends = [e for e in left.poll_events(limit=1) if isinstance(e, kvxfer.TransferEnd)]
            seen += [end.user_word for end in ends]
        assert seen == [3]


def test_wait_events_in_threads() -> None:
    words: list[int] = []
    stopped: queue.Queue[None] = queue.Queue()

    def take(agent: kvxfer.Agent) -> None:
        while True:
            for end in agent.wait_events(10, ["transfer_end"], limit=3):
                if end.user_word == 0:
                    stopped.put(None)
                    return
                words.append(end.user_word)

    with pair() as (left, right):
        know(left, right)
        threads = [threading.Thread(target=take, args=(left,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for word in range(1, 101):
            left.notify(right.name, b"x", user_word=word)
        # One call may return several ends, and a thread stops at the first with word 0: the next one
        # is sent when the one before has stopped a thread.
        for _ in threads:
            left.notify(right.name, b"last", user_word=0).wait(5)
            stopped.get(timeout=10)
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
    assert sorted(words) == list(range(1, 101))


def test_bad_kinds_and_words() -> None:
    with pair() as (left, right):
        know(left, right)
        for call in (left.poll_events, left.event_fd):
            with pytest.raises(kvxfer.InvalidArgument, match="kinds has .ends."):
                call(["notification", "ends"])
            with pytest.raises(kvxfer.InvalidArgument, match="kinds is empty"):
                call([])
        with pytest.raises(kvxfer.InvalidArgument, match="limit"):
            left.wait_events(0, limit=0)
        assert left.poll_events(limit=0) == []
        for word in (-1, 2**64, "7", 1.5):
            with pytest.raises(TypeError):
                left.notify(right.name, b"x", user_word=word)
    with pytest.raises(kvxfer.Closed):
        left.poll_events()
    with pytest.raises(kvxfer.Closed):
        left.event_fd()


def test_closed_with_events_left() -> None:
    with pair() as (left, right):
        know(left, right)
        for word in range(50):
            left.notify(right.name, b"x", user_word=word)
        (first,) = left.wait_events(5, ["transfer_end"], limit=1)
    assert first.transfer.done() and right.closed

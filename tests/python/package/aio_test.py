"""``await transfer`` and ``async for`` over notifications, without threads of Python."""

from __future__ import annotations

import asyncio
import threading
import time

import kvxfer
import pytest
from pairs import know, name, pair


def test_await_returns_at_the_end() -> None:
    async def main(left: kvxfer.Agent, right: kvxfer.Agent) -> None:
        transfer = left.notify(right.name, b"x")
        assert await transfer is None
        assert transfer.done()
        await transfer  # again, of one that has ended

    with pair() as (left, right):
        know(left, right)
        asyncio.run(main(left, right))
        asyncio.run(main(left, right))  # in another loop


def test_await_raises_the_end() -> None:
    async def main(left: kvxfer.Agent, right: kvxfer.Agent) -> None:
        region = left.register_memory(bytearray(64))
        target = right.register_memory(bytearray(64))
        know(left, right)
        rows = [(region.address, 64)], [(target.address, 64)]
        late = left.write(right.name, *rows, ready=kvxfer.ReadyFlag(), deadline=0.1)
        with pytest.raises(kvxfer.DeadlineExceeded):
            await late
        cancelled = left.write(right.name, *rows, ready=kvxfer.ReadyFlag())
        waiting = asyncio.gather(*(asyncio.ensure_future(_wait(cancelled)) for _ in range(3)))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        assert await waiting == ["Cancelled"] * 3
        closed = left.write(right.name, *rows, ready=kvxfer.ReadyFlag())
        asyncio.get_running_loop().call_later(0.05, left.close)
        assert await _wait(closed) == "Cancelled"

    with pair() as (left, right):
        asyncio.run(main(left, right))


async def _wait(transfer: kvxfer.Transfer) -> str:
    try:
        await transfer
    except kvxfer.Error as error:
        return type(error).__name__
    return "done"


def test_a_cancelled_task_leaves_the_transfer() -> None:
    async def main(left: kvxfer.Agent, right: kvxfer.Agent) -> None:
        region = left.register_memory(bytearray(64))
        target = right.register_memory(bytearray(64))
        know(left, right)
        flag = kvxfer.ReadyFlag()
        transfer = left.write(
            right.name, [(region.address, 64)], [(target.address, 64)], ready=flag
        )
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(transfer, 0.05)
        assert transfer.state == "active"
        flag.set()
        await transfer

    with pair() as (left, right):
        asyncio.run(main(left, right))


def test_many_transfers_at_once() -> None:
    async def main(left: kvxfer.Agent, right: kvxfer.Agent) -> None:
        transfers = [left.notify(right.name, b"%d" % number) for number in range(500)]
        await asyncio.gather(*(asyncio.ensure_future(_wait(each)) for each in transfers))
        assert all(each.state == "done" for each in transfers)

    with pair() as (left, right):
        know(left, right)
        asyncio.run(main(left, right))


def test_notifications_are_iterated_until_the_agent_is_closed() -> None:
    async def receive(right: kvxfer.Agent) -> list[bytes]:
        return [told.payload async for told in right.notifications()]

    async def main(left: kvxfer.Agent, right: kvxfer.Agent) -> None:
        receiving = asyncio.ensure_future(receive(right))
        for number in range(100):
            await left.notify(right.name, b"%d" % number)
            if number % 30 == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        right.close()
        assert await asyncio.wait_for(receiving, 5) == [b"%d" % n for n in range(100)]

    with pair() as (left, right):
        know(left, right)
        asyncio.run(main(left, right))


def test_two_iterators_share_what_comes() -> None:
    async def take(right: kvxfer.Agent, got: list[bytes]) -> None:
        async for told in right.notifications():
            got.append(told.payload)

    async def main(left: kvxfer.Agent, right: kvxfer.Agent) -> None:
        got: list[bytes] = []
        tasks = [asyncio.ensure_future(take(right, got)) for _ in range(2)]
        for number in range(50):
            await left.notify(right.name, b"%d" % number)
        await asyncio.sleep(0.05)
        right.close()
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert sorted(got, key=int) == [b"%d" % n for n in range(50)]

    with pair() as (left, right):
        know(left, right)
        asyncio.run(main(left, right))


def test_an_idle_loop_sleeps() -> None:
    """Waiting costs no turns of the loop."""

    async def main(right: kvxfer.Agent) -> float:
        began = time.process_time()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(right.notifications().__anext__(), 0.5)
        return time.process_time() - began

    with kvxfer.Agent(name("idle")) as right:
        assert asyncio.run(main(right)) < 0.1


def test_loops_leave_nothing_behind() -> None:
    import os

    async def main(left: kvxfer.Agent, right: kvxfer.Agent) -> None:
        await left.notify(right.name, b"x")
        iterator = right.notifications()
        assert (await iterator.__anext__()).payload == b"x"
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(iterator.__anext__(), 0.001)

    with pair() as (left, right):
        know(left, right)
        asyncio.run(main(left, right))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(30):
            asyncio.run(main(left, right))
        import gc

        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_what_was_not_handed_out_is_not_lost() -> None:
    async def main(left: kvxfer.Agent, right: kvxfer.Agent) -> None:
        for number in range(10):
            await left.notify(right.name, b"%d" % number)
        for number in range(10):
            async for told in right.notifications():
                assert told.payload == b"%d" % number
                break

    with pair() as (left, right):
        know(left, right)
        asyncio.run(main(left, right))


def test_two_tasks_of_one_iterator() -> None:
    async def take(iterator: object) -> bytes:
        return (await iterator.__anext__()).payload

    async def main(left: kvxfer.Agent, right: kvxfer.Agent) -> None:
        iterator = right.notifications()
        tasks = [asyncio.ensure_future(take(iterator)) for _ in range(2)]
        await asyncio.sleep(0.05)
        for number in range(2):
            await left.notify(right.name, b"%d" % number)
            await asyncio.sleep(0.02)
        assert sorted(await asyncio.wait_for(asyncio.gather(*tasks), 5)) == [b"0", b"1"]

    with pair() as (left, right):
        know(left, right)
        asyncio.run(main(left, right))


def test_one_transfer_in_several_loops() -> None:
    """The end is one event, which whichever loop takes it passes on to the others."""
    results: list[str] = []

    def in_a_loop(transfer: kvxfer.Transfer) -> None:
        results.append(asyncio.run(_wait(transfer)))

    with pair() as (left, right):
        region = left.register_memory(bytearray(64))
        target = right.register_memory(bytearray(64))
        know(left, right)
        for _ in range(5):
            flag = kvxfer.ReadyFlag()
            transfer = left.write(
                right.name, [(region.address, 64)], [(target.address, 64)], ready=flag
            )
            threads = [threading.Thread(target=in_a_loop, args=(transfer,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            time.sleep(0.02)
            flag.set()
            for thread in threads:
                thread.join(10)
                assert not thread.is_alive()
    assert results == ["done"] * 15


def test_await_and_poll_events_take_nothing_from_each_other() -> None:
    async def main(left: kvxfer.Agent, right: kvxfer.Agent) -> None:
        transfers = [left.notify(right.name, b"x", user_word=word) for word in range(20)]
        for transfer in transfers:
            await transfer
        left.poll_events(["peer"])
        ends = left.poll_events()
        assert [end.user_word for end in ends] == list(range(20))
        assert [end.transfer.id for end in ends] == [transfer.id for transfer in transfers]
        again = left.notify(right.name, b"y", user_word=7)
        while not left.poll_events():
            await asyncio.sleep(0.001)
        await again

    with pair() as (left, right):
        know(left, right)
        asyncio.run(main(left, right))


def test_close_in_another_thread_wakes_those_who_wait() -> None:
    async def main(left: kvxfer.Agent, transfer: kvxfer.Transfer) -> str:
        closer = threading.Timer(0.05, left.close)
        closer.start()
        end = await asyncio.wait_for(_wait(transfer), 10)
        closer.join()
        return end

    with pair() as (left, right):
        region = left.register_memory(bytearray(64))
        target = right.register_memory(bytearray(64))
        know(left, right)
        transfer = left.write(
            right.name, [(region.address, 64)], [(target.address, 64)], ready=kvxfer.ReadyFlag()
        )
        assert asyncio.run(main(left, transfer)) == "Cancelled"
        assert asyncio.run(_wait(transfer)) == "Cancelled"  # of an agent that is closed

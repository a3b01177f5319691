"""Closing, forking, leaving: no crash, no hang, whatever order things go in."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref

import kvxfer
import numpy as np
import pytest
from pairs import know, name, pair, run, run_well

USED = """
    import kvxfer, numpy
    source, target = numpy.ones(4096, numpy.uint8), numpy.zeros(4096, numpy.uint8)
    left, right = kvxfer.Agent("left"), kvxfer.Agent("right")
    left.register_memory(source); right.register_memory(target)
    left.add_peer(right.metadata()); right.add_peer(left.metadata())
    def write(**options):
        return left.write("right", [(source.ctypes.data, 4096)], [(target.ctypes.data, 4096)], **options)
    def forever():
        try:
            left.wait_notification()
        except kvxfer.Closed:
            pass
    write(notification=b"x").wait(5)
"""


def test_closed_agents_say_so() -> None:
    agent = kvxfer.Agent(name("closed"))
    agent.close()
    agent.close()
    assert agent.closed and "closed" in repr(agent)
    for call in (
        agent.metadata,
        agent.poll_notification,
        lambda: agent.notify("x", b""),
        lambda: agent.register_memory(bytearray(8)),
        lambda: agent.notification_fd,
    ):
        with pytest.raises(kvxfer.Closed, match="is closed"):
            call()


def test_close_lets_go_of_memory() -> None:
    with pair() as (left, _):
        memory = np.zeros(64, np.uint8)
        held = weakref.ref(memory)
        left.register_memory(memory)
        del memory
        gc.collect()
        assert held() is not None
    gc.collect()
    assert held() is None


def test_a_region_is_a_context() -> None:
    grows = bytearray(64)
    with pair() as (left, _):
        with left.register_memory(grows) as region:
            assert region.bytes == 64 and region.kind == "host"
        grows.extend(b"more")


def test_close_wakes_whoever_waits() -> None:
    with pair() as (left, right):
        region = left.register_memory(bytearray(64))
        target = right.register_memory(bytearray(64))
        know(left, right)
        transfer = left.write(
            right.name, [(region.address, 64)], [(target.address, 64)], ready=kvxfer.ReadyFlag()
        )
        ends: list[type[BaseException]] = []

        def wait(call: object) -> None:
            try:
                call()
            except kvxfer.Error as error:
                ends.append(type(error))

        threads = [
            threading.Thread(target=wait, args=(call,))
            for call in (left.wait_notification, transfer.wait, transfer.wait)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        began = time.monotonic()
        left.close()
        for thread in threads:
            thread.join(10)
        assert time.monotonic() - began < 5
        assert sorted(end.__name__ for end in ends) == ["Cancelled", "Cancelled", "Closed"]
        assert transfer.state == "cancelled"


def test_a_transfer_outlives_its_agent() -> None:
    with pair() as (left, right):
        know(left, right)
        transfer = left.notify(right.name, b"x")
        transfer.wait(5)
    del left, right
    gc.collect()
    transfer.wait(1)
    transfer.cancel()
    assert transfer.state == "done" and transfer.stats.total > 0


def test_ctrl_c_ends_a_wait() -> None:
    # Who runs the tests in the background may have them ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pair() as (left, _):
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                left.wait_notification(30)
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "keep = left; import builtins; builtins.keep = [left, right, source]",
        "held = write(ready=kvxfer.ReadyFlag())",
        "del source, target",
        "cycle = []; cycle.append(cycle); cycle.append(left)",
        "import threading; threading.Thread(target=write().wait_quiet, daemon=True).start()",
        "import threading; threading.Thread(target=forever, daemon=True).start()",
        "import sys; sys.exit(0)",
        "right.close()",
        "left.close(); right.close()",
        "import asyncio; asyncio.run(asyncio.wait_for(left.notifications().__anext__(), 0.05))",
    ],
)
def test_exit_of_the_interpreter(end: str) -> None:
    code = USED + "    try:\n        " + end + "\n    except TimeoutError: pass\n"
    run_well(code)


def test_exit_with_an_error_says_that_error() -> None:
    ran = run(USED + "    raise ValueError('of the program')\n")
    assert ran.returncode == 1 and "of the program" in ran.stderr


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_fork(leave: str) -> None:
    out = run_well(
        USED
        + f"""
    import os, sys
    pid = os.fork()
    if pid == 0:
        for call in (left.metadata, lambda: write(), lambda: right.wait_notification(1)):
            try:
                call()
            except kvxfer.FailedPrecondition as error:
                print("refused", flush=True)
        assert right.poll_notification() is None
        # The child makes its own, and lets go of the parent's.
        with kvxfer.Agent("child") as own:
            own.metadata()
        left.close()
        {leave}
    assert os.waitpid(pid, 0)[1] == 0
    write(notification=b"y").wait(5)
    assert right.wait_notification(5).payload == b"x"
    assert right.wait_notification(5).payload == b"y"
    print("parent goes on")
"""
    )
    assert out.count("refused") == 3 and "parent goes on" in out


def test_fork_while_a_thread_waits() -> None:
    run_well(
        USED
        + """
    import multiprocessing, threading, time
    threading.Thread(target=lambda: left.wait_notification(3), daemon=True).start()
    time.sleep(0.1)
    child = multiprocessing.get_context("fork").Process(target=left.close)
    child.start(); child.join(10)
    assert child.exitcode == 0
    right.notify("left", b"z").wait(5)
"""
    )


def test_many_agents_in_turn() -> None:
    with pair() as (left, _):
        for _ in range(50):
            with kvxfer.Agent(name("turn")) as other:
                know(left, other)
                left.notify(other.name, b"x").wait(5)
                left.remove_peer(other.name)


def test_a_signal_handler_may_close() -> None:
    with pair() as (left, _):
        signal.signal(signal.SIGUSR1, lambda *_: left.close())
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        began = time.monotonic()
        with pytest.raises(kvxfer.Closed):
            left.wait_notification(30)
        assert time.monotonic() - began < 10
        timer.join()


def test_whoever_closes_second_waits_too() -> None:
    """A peer that is stopped makes closing take its time; memory is let go of only then."""
    run_well(
        USED
        + """
    import os, signal, subprocess, sys, threading, time
    code = "import kvxfer, sys; a = kvxfer.Agent('stopped'); m = bytearray(64); a.register_memory(m)\\n"
    code += "sys.stdout.write(a.metadata().hex() + chr(10)); sys.stdout.flush()\\n"
    code += "a.add_peer(bytes.fromhex(sys.stdin.readline())); a.notify('left', b'x').wait(5)\\n"
    code += "print('told', flush=True); sys.stdin.read()"
    peer = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)
    left.add_peer(bytes.fromhex(peer.stdout.readline()))
    peer.stdin.write(left.metadata().hex() + chr(10)); peer.stdin.flush()
    assert peer.stdout.readline() == "told\\n"
    left.notify("stopped", b"y").wait(5)
    os.kill(peer.pid, signal.SIGSTOP)
    ends = []
    def close():
        left.close()
        ends.append(time.monotonic())
    threads = [threading.Thread(target=close) for _ in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    os.kill(peer.pid, signal.SIGKILL); peer.wait()
    assert max(ends) - min(ends) < 0.5, ends
"""
    )


def test_awaited_while_closing_it_is_not_taken_for_done() -> None:
    import asyncio

    async def main(left: kvxfer.Agent, right: kvxfer.Agent, rows: tuple) -> list[str]:
        transfers = [left.write(right.name, *rows, ready=kvxfer.ReadyFlag()) for _ in range(8)]
        closing = threading.Thread(target=left.close)
        closing.start()
        ends = []
        for transfer in transfers:
            try:
                await transfer
                ends.append("done")
            except kvxfer.Error as error:
                ends.append(type(error).__name__)
        closing.join()
        return ends

    for _ in range(20):
        with pair() as (left, right):
            ours = left.register_memory(bytearray(64))
            theirs = right.register_memory(bytearray(64))
            know(left, right)
            rows = ([(ours.address, 64)], [(theirs.address, 64)])
            assert asyncio.run(main(left, right, rows)) == ["Cancelled"] * 8


def test_memory_may_do_what_it_likes_while_it_is_let_go_of() -> None:
    class Calls(np.ndarray):
        """Its end, and each question for its address, calls the agent."""

        call: object = None

        def data_ptr(self) -> int:
            if self.call is not None:
                self.call()
            return self.ctypes.data

        def __del__(self) -> None:
            if self.call is not None:
                self.call()

    def quietly(call: object) -> object:
        def run_it() -> None:
            try:
                call()
            except kvxfer.Error:
                pass

        return run_it

    with pair() as (left, right):
        target = right.register_memory(bytearray(64))
        know(left, right)
        memories = [np.zeros(64, np.uint8).view(Calls) for _ in range(4)]
        regions = [left.register_memory(memory) for memory in memories]
        rows = ([(regions[0].address, 64)], [(target.address, 64)])
        for memory, region in zip(memories, regions):
            memory.call = quietly(lambda region=region: left.deregister_memory(region))
        with pytest.raises(kvxfer.InvalidArgument):
            left.write(right.name, *rows)
        again = [np.zeros(64, np.uint8).view(Calls) for _ in range(4)]
        for memory in again:
            left.register_memory(memory)
            memory.call = quietly(lambda: left.write(right.name, *rows))
        del memories, again, memory
        left.close()


def test_daemon_threads_end_with_the_interpreter() -> None:
    run_well(
        USED
        + """
    import threading, time
    held = write(ready=kvxfer.ReadyFlag())
    def waits():
        while True:
            try:
                held.wait(0.01)
            except kvxfer.Error:
                pass
    def makes():
        while True:
            kvxfer.HostBuffer(4096)
    for loop in (waits, makes):
        threading.Thread(target=loop, daemon=True).start()
    time.sleep(0.1)
"""
    )

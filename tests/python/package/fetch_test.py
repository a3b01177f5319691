"""An agent's metadata over the port where its tcp listens."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import kvxfer
import numpy as np
import pytest
from pairs import name, run_well


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """Accepts, as the kernel does, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_fetched_metadata_is_enough_for_a_peer() -> None:
    source, target = np.full((8, 4096), 7, np.uint8), np.zeros((8, 4096), np.uint8)
    with (
        kvxfer.Agent(name("serves"), serve_metadata=True) as serves,
        kvxfer.Agent(name("fetches")) as fetches,
    ):
        before = kvxfer.fetch_metadata(serves.listen_address)
        assert isinstance(before, bytes) and before == serves.metadata()
        serves.register_memory(target)
        fetches.register_memory(source)
        metadata = kvxfer.fetch_metadata(serves.listen_address, timeout=30)
        assert metadata == serves.metadata() != before
        peer = fetches.add_peer(metadata)
        ours, theirs = kvxfer.PagedRegion.of(source), kvxfer.PagedRegion.of(target)
        fetches.write(peer, ours, theirs, [1], [2], notification=b"there").wait(5)
        assert serves.wait_notification(5).payload == b"there"
    assert target[2].all() and not target[3:].any()


def test_of_another_process_that_does_nothing() -> None:
    code = """
        import kvxfer, sys
        agent = kvxfer.Agent("idle", serve_metadata=True, environment=False)
        print(agent.listen_address, flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        address = process.stdout.readline().strip()
        with kvxfer.Agent(name("fetches")) as agent:
            assert agent.add_peer(kvxfer.fetch_metadata(address)) == "idle"
        process.stdin.close()
        assert process.wait(30) == 0
    with pytest.raises(kvxfer.PeerLost, match="is the agent running there"):
        kvxfer.fetch_metadata(address)


def test_it_is_refused_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVXFER_SERVE_METADATA", raising=False)
    with kvxfer.Agent(name("silent")) as agent:
        with pytest.raises(kvxfer.FailedPrecondition, match="serve_metadata"):
            kvxfer.fetch_metadata(agent.listen_address)
    monkeypatch.setenv("KVXFER_SERVE_METADATA", "1")
    with kvxfer.Agent(name("told")) as agent:
        assert kvxfer.fetch_metadata(agent.listen_address) == agent.metadata()
    with kvxfer.Agent(name("untold"), serve_metadata=False) as agent:
        with pytest.raises(kvxfer.FailedPrecondition, match="serve_metadata"):
            kvxfer.fetch_metadata(agent.listen_address)
    with pytest.raises(kvxfer.InvalidArgument, match="serve_metadata.*no backend tcp"):
        kvxfer.Agent(name("deaf"), backends=["shm"])


def test_a_black_hole_ends_in_time_and_others_run_meanwhile() -> None:
    counted = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.wait(0.001):
            counted += 1

    counter = threading.Thread(target=count)
    counter.start()
    with black_hole() as address:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=f"{address}.*300 ms"):
            kvxfer.fetch_metadata(address, timeout=0.3)
        assert 0.3 <= time.monotonic() - began < 3
    stop.set()
    counter.join()
    assert counted > 20


def test_ctrl_c_ends_it() -> None:
    class Rung(Exception):
        pass

    def ring(*_: object) -> None:
        raise Rung

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with black_hole() as address:
            began = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Rung):
                kvxfer.fetch_metadata(address, timeout=60)
            assert time.monotonic() - began < 10
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_threads_that_fetch_do_not_keep_the_interpreter_from_its_end() -> None:
    run_well(
        """
        import kvxfer, socket, threading
        listener = socket.create_server(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % listener.getsockname()[1]
        def fetch():
            try:
                kvxfer.fetch_metadata(address, 600)
            except kvxfer.Error:
                pass
        for _ in range(4):
            threading.Thread(target=fetch, daemon=True).start()
        agent = kvxfer.Agent("other", serve_metadata=True)
        kvxfer.fetch_metadata(agent.listen_address)
        """
    )


def test_many_threads_at_once() -> None:
    with kvxfer.Agent(name("serves"), serve_metadata=True) as agent:
        said, got = agent.metadata(), []

        def fetch() -> None:
            got.append(kvxfer.fetch_metadata(agent.listen_address, 30))

        threads = [threading.Thread(target=fetch) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [said] * 64


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("nonsense:x",), kvxfer.InvalidArgument, "expected host:port"),
        (("127.0.0.1:0",), kvxfer.InvalidArgument, "cannot be connected to"),
        (("127.0.0.1:1", float("nan")), ValueError, "timeout is not a number"),
        ((7471,), TypeError, "fetch_metadata"),
        (("127.0.0.1:1", "soon"), TypeError, "fetch_metadata"),
        ((), TypeError, "fetch_metadata"),
    ],
)
def test_bad_arguments(arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kvxfer.fetch_metadata(*arguments)


def test_another_program_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as client:
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                client.recv(100)

        server = threading.Thread(target=answer)
        server.start()
        with pytest.raises(kvxfer.Internal, match='no kvxfer agent.*"HTTP'):
            kvxfer.fetch_metadata(f"127.0.0.1:{listener.getsockname()[1]}")
        server.join()

"""The parts of the drop-in by themselves: coverage, messages in parts, metadata, the listener."""

import json
import random
import socket
import struct
import threading
import time
import zlib

import numpy as np
import pytest
from kvxfer import _errors
from kvxfer.compat.nixl import exchange, metadata
from kvxfer.compat.nixl.bindings import nixlBackendError, nixlMismatchError
from kvxfer.compat.nixl.coverage import Coverage
from kvxfer.compat.nixl.engine import Engine
from kvxfer.compat.nixl.handle_table import HandleTable
from kvxfer.compat.nixl.inbox import Inbox
from kvxfer.compat.nixl.messages import Joiner, Splitter
from kvxfer.compat.nixl.remotes import Remotes
from nixl_record import wait_until


def _plainly(ranges: list, rows: list) -> bool:
    def held(address: int, size: int, device: int) -> bool:
        return any(
            device == where and start <= address and address + size <= start + length
            for start, length, where in ranges
        )

    return bool(rows) and all(held(*row) for row in rows)


def _random_rows(rng: random.Random, ranges: list) -> list:
    rows = []
    for _ in range(rng.randrange(6)):
        start, length, device = rng.choice(ranges)
        at = rng.randrange(length + 1)
        rows.append((start + at, rng.randrange(length - at + 1) + (rng.random() < 0.1), device))
    return sorted(rows) if rng.random() < 0.5 else rows


@pytest.mark.parametrize("seed", range(4))
def test_coverage_is_that_of_one_range(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(2000):
        devices = rng.choice((1, 2))
        ranges = [
            (rng.randrange(1, 60), rng.randrange(20), rng.randrange(devices))
            for _ in range(rng.randrange(1, 6))
        ]
        rows = _random_rows(rng, ranges)
        asked = np.array(rows, dtype=np.uint64).reshape(-1, 3)
        assert Coverage(ranges).covers(asked) == _plainly(ranges, rows), (ranges, rows)

        strips = [(*row, max(row[1] + rng.choice((-1, 0, 3)), 0), rng.randrange(4)) for row in rows]
        spans = [(a, stride * (count - 1) + size, d) for a, size, d, stride, count in strips]
        good = all(size and count and stride >= size for _, size, _, stride, count in strips)
        asked = np.array(strips, dtype=np.uint64).reshape(-1, 5)
        assert Coverage(ranges).covers_strips(asked) == (good and _plainly(ranges, spans)), strips


@pytest.mark.parametrize(
    "row", [(8, 2**64 - 1, 0), (2**64 - 1, 2, 0), (2**64 - 1, 0, 0), (0, 2**64 - 1, 0)]
)
def test_no_range_wraps_around(row: tuple) -> None:
    assert not Coverage([(8, 100, 0)]).covers(np.array([row], dtype=np.uint64))


def _all_messages(joiner: Joiner, sender: str, payloads: list) -> list:
    return [m for payload in payloads if (m := joiner.join(sender, "1", payload)) is not None]


@pytest.mark.parametrize("size", [0, 1, 8, 29, 65535, 65536, 65537, 131000, 1 << 20])
@pytest.mark.parametrize("begin", [b"", b"\xff", b"\xffkvxnixl"])
def test_messages_come_whole(size: int, begin: bytes) -> None:
    message = (begin + bytes(range(256)) * (size // 256 + 1))[:size]
    parts = Splitter().split(message)
    assert all(len(part) <= 65536 for part in parts)
    assert _all_messages(Joiner(), "a", parts) == [message]


def test_parts_of_several_threads_and_senders() -> None:
    splitter = Splitter()
    messages = [bytes([i]) * 150_000 for i in range(3)]
    joiner = Joiner()
    woven = [part for three in zip(*map(splitter.split, messages)) for part in three]
    assert _all_messages(joiner, "a", woven) == messages
    again = Splitter().split(messages[0])
    assert _all_messages(joiner, "b", again) == messages[:1]


def test_parts_that_are_missing_or_late() -> None:
    one, two = Splitter().split(b"1" * 150_000), Splitter().split(b"2" * 150_000)
    joiner = Joiner()
    assert _all_messages(joiner, "a", one[:2]) == []
    assert _all_messages(joiner, "b", two[1:]) == []
    joiner.forget("a")
    assert _all_messages(joiner, "a", one[2:]) == []
    assert _all_messages(joiner, "a", [b"plain", *two]) == [b"plain", b"2" * 150_000]
    assert _all_messages(joiner, "a", [Splitter.greeting(), b"\xffkvxnixl"]) == [b"\xffkvxnixl"]


def test_what_is_unfinished_is_bounded() -> None:
    splitter, joiner = Splitter(), Joiner()
    for _ in range(1000):
        joiner.join("a", "1", splitter.split(b"x" * 70_000)[0])
    assert sum(map(len, joiner._open.values())) <= 64


def _metadata(**changed: object) -> metadata.Metadata:
    values: dict = {
        "agent": "b",
        "incarnation": "0123",
        "sequence": 7,
        "connection": True,
        "backends": ["UCX"],
        "kvxfer": b"opaque",
        "sections": {0: [(1, 2, 3), (2**64 - 1, 0, 5)]},
    }
    return metadata.Metadata(**{**values, **changed})


def test_metadata_round_trip() -> None:
    for blob in (_metadata(), _metadata(sections={}), _metadata(agent="ü\n", kvxfer=b"")):
        assert metadata.decode(metadata.encode(blob)) == blob
        assert metadata.decode(metadata.encode(blob) + b"more") == blob


def test_damaged_metadata_is_refused() -> None:
    whole = metadata.encode(_metadata())
    for length in range(len(whole)):
        with pytest.raises(nixlMismatchError):
            metadata.decode(whole[:length])
    for at in range(len(whole)):
        for bit in (1, 0x80):
            with pytest.raises(nixlMismatchError):
                metadata.decode(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"nixlSerDes|Agent\x01\0\0\0", "metadata is of NIXL itself"),
        (b"kvxnixl2" + bytes(40), "version 2 of kvxfer's drop-in"),
        (b"kvxnixl1" + bytes(2), "cut off after 10 bytes"),
        (b"HTTP/1.1 200 OK", "not metadata of an agent"),
    ],
)
def test_the_error_says_what_it_is_instead(data: bytes, said: str) -> None:
    with pytest.raises(nixlMismatchError, match=said):
        metadata.decode(data)


class _Unreachable:
    def add_peer(self, blob: bytes) -> str:
        raise _errors.InvalidArgument("tcp: the peer on host x advertises loopback 127.0.0.1:5")


def test_an_agent_out_of_reach_names_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(nixlBackendError, match="KVXFER_LISTEN"):
        Remotes("a").load(_Unreachable(), {"UCX": 1}, metadata.encode(_metadata()))
    assert "KVXFER_LISTEN" in caplog.text


def _with_head(changed: dict) -> bytes:
    """Metadata of which the checksum is right and a value is not."""
    head = {"agent": "b", "incarnation": "0", "sequence": 1, "connection": True}
    text = json.dumps({**head, "backends": ["UCX"], "sections": [], **changed}).encode()
    body = struct.pack("<I", len(text)) + text
    return struct.pack("<8sQI", b"kvxnixl1", len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize("sequence", [float("inf"), 2**63, -1, 1.5, "1", True, None])
def test_a_sequence_is_a_number_of_63_bits(sequence: object) -> None:
    assert metadata.decode(_with_head({"sequence": 2**63 - 1})).sequence == 2**63 - 1
    with pytest.raises(nixlMismatchError, match="damaged"):
        metadata.decode(_with_head({"sequence": sequence}))


@pytest.mark.parametrize(
    "sections", [[[float("inf"), 0]], [[0, float("inf")]], [[0, 2**70]], [[0]], 5, [[0, -1]]]
)
def test_sections_of_wrong_numbers(sections: object) -> None:
    with pytest.raises(nixlMismatchError, match="damaged"):
        metadata.decode(_with_head({"sections": sections}))


def test_a_finaliser_may_release_a_handle_within_any_call() -> None:
    """As the garbage collector does; it must not wait for the call that it interrupts."""
    table = HandleTable()

    class Number:
        def __index__(self) -> int:
            table.drop(table.add(self))
            return table.add("thing")

    done = threading.Thread(target=lambda: table.get(Number(), str), daemon=True)
    done.start()
    done.join(5)
    assert not done.is_alive()


def test_an_agent_may_be_closed_while_it_encodes_metadata() -> None:
    engine = Engine("a")

    class Agent:
        incarnation = "0"

        def metadata(self) -> bytes:
            engine.close()  # as the collector does where the last reference was in a cycle
            return b"blob"

        def close(self) -> None: ...

    engine._agent = Agent()
    engine.backends["UCX"] = 1
    made: list[bytes] = []
    thread = threading.Thread(target=lambda: made.append(engine.metadata()), daemon=True)
    thread.start()
    thread.join(5)
    assert metadata.decode(made[0]).kvxfer == b"blob"


def test_notifications_are_looked_at_by_several_threads() -> None:
    class Posted:
        error = None

        def done(self) -> bool:
            time.sleep(0)  # lets others in
            return True

    class Agent:
        def poll_peer_event(self) -> None: ...

    inbox, agent = Inbox(Remotes("a")), Agent()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(2000):
                inbox._sent.append(Posted())
                inbox.watch(agent)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    inbox.watch(agent)
    assert failures == [] and not inbox._sent


class _Known:
    name = "a"

    def __init__(self) -> None:
        self.loaded = 0
        self.go_on = threading.Event()

    def metadata(self) -> bytes:
        return b"m"

    def load(self, data: bytes) -> str:
        self.loaded += 1
        self.go_on.wait(5)
        return "b"

    def remove(self, name: str) -> bool:
        return True


def _request(port: int, size: int, sent: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=5)
    try:
        sock.sendall(struct.pack("<8sBQ", b"kvxnixl?", exchange.LOAD, size) + bytes(sent))
    except OSError:
        pass  # closed by the listener
    return sock


def _is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def test_what_the_listener_holds_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_MOST_BYTES", 1000)
    monkeypatch.setattr(exchange, "_MOST_BYTES_AT_ONCE", 2500)
    known = _Known()
    listener = exchange.Listener(known, 0)
    try:
        assert _is_closed(_request(listener.port, 1001, 0))
        kept = [_request(listener.port, 1000, 1000) for _ in range(2)]
        end = time.monotonic() + 5
        while known.loaded < 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert known.loaded == 2
        assert _is_closed(_request(listener.port, 1000, 1000))
        known.go_on.set()
        assert not any(map(_is_closed, kept))
        # It is given back after the answer.
        assert wait_until(lambda: listener._budget._left == 2500)
        assert not _is_closed(_request(listener.port, 1000, 1000))
        assert wait_until(lambda: listener._budget._left == 2500)
    finally:
        listener.stop()


def test_an_answer_is_not_longer_than_what_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    courier, listener = exchange.Courier(_Known()), exchange.Listener(_Known(), 0)
    courier._deliver("127.0.0.1", listener.port, exchange.LOAD, bytes(exchange._MOST_BYTES + 1))
    assert f"expected at most {exchange._MOST_BYTES}" in caplog.text
    listener.stop()

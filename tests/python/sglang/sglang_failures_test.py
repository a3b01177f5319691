"""What goes wrong ends at both sides, on time and with a reason; nothing is written after decode has
been told, and what is left can be used again."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sglang_pair import (
    BOOTSTRAPPING,
    FAILED,
    SUCCESS,
    TRANSFERRING,
    WAITING,
    Cluster,
    Process,
    until,
)
from sglang_transfers_test import transfer

_ROOM = 77
_PAGES = [3, 4, 5, 6]
_TARGET = [10, 20, 30, 40]
_SOON_S = 3.0


def fails(rank: Process, room: int, reason: str, limit_s: float = _SOON_S) -> None:
    until(rank, room, FAILED, limit_s=limit_s)
    assert reason in rank.failure(room)


def begin(prefill: Process, decode: Process, state: str) -> None:
    """To where the request is in ``state``."""
    prefill.sender(_ROOM)
    assert decode.receiver(_ROOM)
    until(decode, _ROOM, WAITING)
    if state == "met":
        return
    decode.metadata(_ROOM, _TARGET, 2)
    until(prefill, _ROOM, WAITING)
    prefill.init(_ROOM, len(_PAGES), 1)
    if state == "asked":
        return
    prefill.send(_ROOM, _PAGES[:2])
    if state == "begun":
        return
    prefill.send(_ROOM, _PAGES[2:])


@pytest.fixture
def pair(cluster: Cluster) -> tuple[Process, Process]:
    prefill, decode = cluster.begin("prefill"), cluster.begin("decode")
    prefill.wait_started()
    decode.wait_started()
    return prefill, decode


def still_works(prefill: Process, decode: Process) -> None:
    """The same room may come again, and nothing is kept of the one that has failed."""
    transfer([prefill], [decode], _ROOM + 1, [_PAGES], _TARGET)
    for rank in (prefill, decode):
        kept = {name: number for name, number in rank.counts().items() if number}
        # Prefill remembers for those who ask late that a room has failed.
        assert set(kept) <= {"_rooms"}, kept


@pytest.mark.parametrize("state", ["asked", "begun"])
def test_prefill_aborts(pair: tuple[Process, Process], state: str) -> None:
    prefill, decode = pair
    begin(prefill, decode, state)
    prefill.abort(_ROOM)
    fails(prefill, _ROOM, "AbortReq")
    fails(decode, _ROOM, "AbortReq")
    before = decode.digest()
    assert decode.safe(_ROOM)
    prefill.send(_ROOM, _PAGES[2:])
    time.sleep(0.05)
    assert decode.digest() == before
    still_works(prefill, decode)


def test_prefill_aborts_before_decode_has_asked(pair: tuple[Process, Process]) -> None:
    prefill, decode = pair
    begin(prefill, decode, "met")
    prefill.abort(_ROOM)
    fails(prefill, _ROOM, "AbortReq")
    decode.metadata(_ROOM, _TARGET, 2)
    fails(decode, _ROOM, "AbortReq")
    still_works(prefill, decode)


@pytest.mark.parametrize("state", ["met", "asked", "begun"])
def test_decode_aborts(pair: tuple[Process, Process], state: str) -> None:
    prefill, decode = pair
    begin(prefill, decode, state)
    decode.abort(_ROOM)
    fails(decode, _ROOM, "AbortReq")
    before = decode.digest()
    assert decode.safe(_ROOM)
    if state == "met":
        # Nobody has asked prefill for anything: it goes on waiting, as for any that is late.
        assert prefill.poll(_ROOM) == BOOTSTRAPPING
        prefill.abort(_ROOM)
        prefill.failure(_ROOM)
    else:
        prefill.send(_ROOM, _PAGES[2:])
        fails(prefill, _ROOM, "given the request up")
    assert decode.digest() == before
    still_works(prefill, decode)


def test_decode_aborts_what_prefill_does_not_have_yet(pair: tuple[Process, Process]) -> None:
    prefill, decode = pair
    assert decode.receiver(_ROOM)
    until(decode, _ROOM, WAITING)
    decode.metadata(_ROOM, _TARGET, 2)
    decode.abort(_ROOM)
    fails(decode, _ROOM, "AbortReq")
    prefill.sender(_ROOM)
    fails(prefill, _ROOM, "given the request up")


def test_an_abort_that_comes_too_late_changes_nothing(pair: tuple[Process, Process]) -> None:
    prefill, decode = pair
    begin(prefill, decode, "sent")
    until(prefill, _ROOM, SUCCESS)
    until(decode, _ROOM, SUCCESS)
    prefill.abort(_ROOM)
    decode.abort(_ROOM)
    assert (prefill.poll(_ROOM), decode.poll(_ROOM)) == (SUCCESS, SUCCESS)
    decode.clear(_ROOM)
    prefill.clear(_ROOM)
    still_works(prefill, decode)


@pytest.mark.parametrize("state", ["met", "asked", "begun"])
def test_prefill_is_killed(cluster: Cluster, pair: tuple[Process, Process], state: str) -> None:
    prefill, decode = pair
    begin(prefill, decode, state)
    prefill.kill()
    if state == "met":
        time.sleep(0.2)
        decode.metadata(_ROOM, _TARGET, 2)
    fails(decode, _ROOM, "prefill")
    # Expect another life at the same bootstrap server to serve at once, with other bytes.
    again = cluster.rank("prefill", seed=5)
    transfer([again], [decode], _ROOM, [_PAGES], _TARGET, aux=(1, 3))
    pages = dict(zip(_TARGET, _PAGES, strict=True))
    assert decode.wrong(cluster.spec("prefill", seed=5), pages, {3: 1}) == []


@pytest.mark.parametrize("state", ["asked", "begun"])
def test_decode_is_killed(cluster: Cluster, pair: tuple[Process, Process], state: str) -> None:
    prefill, decode = pair
    begin(prefill, decode, state)
    decode.kill()
    fails(prefill, _ROOM, "decode")
    # Expect nothing of the old requests in another life of decode.
    again = cluster.rank("decode")
    empty = again.digest()
    prefill.send(_ROOM, _PAGES[2:])
    time.sleep(0.05)
    assert again.digest() == empty
    transfer([prefill], [again], _ROOM, [_PAGES], _TARGET)


def test_both_sides_wait_no_longer_than_sglang_says(cluster: Cluster) -> None:
    timeouts = (
        ("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "1"),
        ("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "2"),
    )
    prefill = cluster.rank("prefill", environment=timeouts)
    decode = cluster.rank("decode", environment=timeouts)
    # Prefill has room 1, decode asks for room 2; of room 3 prefill sends nothing.
    prefill.sender(1)
    prefill.sender(3)
    for room in (2, 3):
        assert decode.receiver(room)
        until(decode, room, WAITING)
        decode.metadata(room, _TARGET, 2)
    until(prefill, 3, WAITING)
    fails(prefill, 1, "timed out")
    fails(decode, 2, "no request of room 2")
    fails(decode, 3, "timed out")
    fails(prefill, 3, "given the request up")
    assert decode.safe(3)


@pytest.mark.parametrize("backends", ["tcp", "shm,tcp"])
def test_a_prefill_that_stands_still_is_cut_off(cluster: Cluster, backends: str) -> None:
    which = ("KVXFER_BACKENDS", backends)
    prefill = cluster.rank("prefill", environment=(which,))
    decode = cluster.rank("decode", environment=(which, ("SGLANG_KVXFER_QUIET_TIMEOUT", "0.5")))
    prefill.hurry()
    decode.hurry()
    begin(prefill, decode, "begun")
    # Expect that it lasts while decode says that it waits.
    time.sleep(1.3)
    assert prefill.poll(_ROOM) == decode.poll(_ROOM) == WAITING
    prefill.stop()
    decode.abort(_ROOM)
    # Expect that the failure waits for its answer, and that the pages are not said to be free.
    assert decode.poll(_ROOM) == TRANSFERRING
    fails(decode, _ROOM, "AbortReq")
    assert not decode.safe(_ROOM)
    before = decode.digest()
    # Expect them to be free once prefill would not begin anything any more, but not while a process that
    # copies itself may be in the middle of it.
    end = time.monotonic() + (10 if backends == "tcp" else 2)
    while not decode.safe(_ROOM) and time.monotonic() < end:
        time.sleep(0.05)
    assert decode.safe(_ROOM) == (backends == "tcp")
    prefill.go_on()
    prefill.send(_ROOM, _PAGES[2:])
    fails(prefill, _ROOM, "")
    assert decode.digest() == before
    prefill.clear(_ROOM)
    assert decode.receiver(_ROOM + 1)
    transfer([prefill], [decode], _ROOM + 2, [_PAGES], _TARGET)


def test_prefill_aborts_writes_that_decode_does_not_take(cluster: Cluster) -> None:
    only_tcp = (("KVXFER_BACKENDS", "tcp"),)
    prefill = cluster.rank("prefill", environment=only_tcp)
    decode = cluster.rank("decode", environment=only_tcp)
    begin(prefill, decode, "asked")
    decode.stop()
    prefill.send(_ROOM, _PAGES)
    time.sleep(0.05)
    prefill.abort(_ROOM)
    assert prefill.poll(_ROOM) == WAITING
    fails(prefill, _ROOM, "AbortReq")
    decode.go_on()
    # All of it may have been on its way already: then decode has it, and has it right.
    if until(decode, _ROOM, FAILED, SUCCESS) == SUCCESS:
        pages = dict(zip(_TARGET, _PAGES, strict=True))
        assert decode.wrong(cluster.spec("prefill"), pages, {2: 1}) == []
    else:
        assert "AbortReq" in decode.failure(_ROOM)
    before = decode.digest()
    time.sleep(0.1)
    assert decode.digest() == before


@pytest.mark.parametrize("pages", [3, 5, 0, -7])
def test_another_number_of_pages_fails_before_it_is_computed(
    pair: tuple[Process, Process], pages: int
) -> None:
    prefill, decode = pair
    begin(prefill, decode, "asked")
    prefill.init(_ROOM, pages, 1)
    fails(prefill, _ROOM, "decode has 4")
    fails(decode, _ROOM, "decode has 4")
    still_works(prefill, decode)


def test_decode_is_met_anew_after_prefill_has_forgotten_it(pair: tuple[Process, Process]) -> None:
    prefill, decode = pair
    transfer([prefill], [decode], _ROOM, [_PAGES], _TARGET)
    prefill.forget_peers()
    assert decode.receiver(_ROOM)
    until(decode, _ROOM, WAITING)
    decode.metadata(_ROOM, _TARGET, 2)
    fails(decode, _ROOM, "has not met")
    transfer([prefill], [decode], _ROOM, [_PAGES], _TARGET)


def test_one_of_two_prefill_ranks_fails(cluster: Cluster) -> None:
    prefills = cluster.ranks("prefill", 2)
    decode = cluster.rank("decode")
    assert decode.receiver(_ROOM)
    for each in prefills:
        each.sender(_ROOM)
    until(decode, _ROOM, WAITING)
    decode.metadata(_ROOM, _TARGET, 2)
    for each in prefills:
        until(each, _ROOM, WAITING)
        each.init(_ROOM, len(_PAGES), 1)
    prefills[0].send(_ROOM, _PAGES)
    prefills[1].send(_ROOM, _PAGES[:1])
    prefills[1].abort(_ROOM)
    fails(decode, _ROOM, "AbortReq")
    assert decode.safe(_ROOM)
    fails(prefills[1], _ROOM, "AbortReq")
    until(prefills[0], _ROOM, SUCCESS, FAILED)


def test_pages_that_do_not_match_are_not_sent(pair: tuple[Process, Process]) -> None:
    prefill, decode = pair
    begin(prefill, decode, "asked")
    prefill.send(_ROOM, [1, 2, 3, 4, 5, 6])
    fails(prefill, _ROOM, "decode has 4")
    fails(decode, _ROOM, "decode has 4")
    still_works(prefill, decode)


_WANT = {
    "do": "want",
    "request": 99,
    "room": _ROOM,
    "pages": "AAAAAA==",
    "aux": 0,
    "states": [],
    "prefix": 0,
    "ranks": 1,
    "dummy": False,
}


@pytest.mark.parametrize(
    "message",
    [
        {"do": "nothing"},
        {"do": ["want"]},
        {"do": "want"},
        _WANT | {"pages": "AAAA"},
        _WANT | {"pages": "////fw=="},  # page 2**31 - 1
        _WANT | {"pages": "AAAAAAAAAAA="},  # page 0, twice
        _WANT | {"pages": 7},
        _WANT | {"aux": 8},
        _WANT | {"aux": -1},
        _WANT | {"states": [[]]},
        _WANT | {"request": 1 << 80},
        _WANT | {"ranks": 0},
        {"do": "abort"},
        {"do": "keep", "requests": {"a": 1}},
        {"do": "keep", "requests": [[], None, "x"]},
        {"do": "hello"},
        {"do": "hello", "version": 1, "metadata": "AAAA", "layout": {}},
        {"do": "ended", "request": 1},
    ],
)
def test_malformed_messages_change_nothing(talker: list[Process], message: dict[str, Any]) -> None:
    prefill, decode = talker
    decode.tell({}, b"no message")
    decode.tell({}, b"kvsp" + bytes(16))
    decode.tell(message)
    room = int(time.monotonic() * 1e6)
    transfer([prefill], [decode], room, [_PAGES], _TARGET)
    assert not prefill.counts()["_rooms"]


@pytest.fixture(scope="module")
def talker(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = Cluster(start, tmp_path_factory.mktemp("talker"))
    ranks = [made.rank("prefill"), made.rank("decode")]
    transfer([ranks[0]], [ranks[1]], 1, [_PAGES], _TARGET)
    yield ranks
    made.close()


def test_threads_end(pair: tuple[Process, Process]) -> None:
    prefill, decode = pair
    begin(prefill, decode, "begun")
    assert prefill.close() == []
    fails(decode, _ROOM, "prefill")
    assert decode.close() == []


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_process_ends_that_closes_nothing(pair: tuple[Process, Process], role: str) -> None:
    prefill, decode = pair
    begin(prefill, decode, "begun")
    leaving = prefill if role == "prefill" else decode
    leaving.leave()
    leaving.process.join(5)
    assert leaving.process.exitcode == 0, leaving.tail()

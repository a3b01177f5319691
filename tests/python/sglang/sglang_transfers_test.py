"""SGLang's classes over kvxfer: what prefill has computed lies in decode, and nothing else does."""

from __future__ import annotations

import time
from typing import Any

import pytest
from cuda_standin import needs_standin
from sglang_pair import BOOTSTRAPPING, FAILED, SUCCESS, WAITING, Cluster, Process, until

_ROOM = 4711


def transfer(
    prefills: list[Process],
    decodes: list[Process],
    room: int,
    chunks: list[list[int]],
    target: list[int],
    aux: tuple[int, int] = (1, 3),
    state: tuple[list[int], list[int]] | None = None,
) -> None:
    """A whole request, as the schedulers of all ranks go through it."""
    for each in decodes:
        assert each.receiver(room)
    for each in prefills:
        each.sender(room)
    for each in decodes:
        until(each, room, WAITING)
        each.metadata(room, target, aux[1], *([state[1]] if state else []))
    pages = sum(len(chunk) for chunk in chunks)
    for each in prefills:
        until(each, room, WAITING)
        each.init(room, pages, aux[0])
        for nth, chunk in enumerate(chunks):
            last = nth == len(chunks) - 1
            each.send(room, chunk, *([state[0]] if state and last else []))
    for each in (*prefills, *decodes):
        until(each, room, SUCCESS)
        each.clear(room)


def check(
    cluster: Cluster,
    decodes: list[Process],
    chunks: list[list[int]],
    target: list[int],
    options: dict[str, Any],
) -> None:
    source = [page for chunk in chunks for page in chunk]
    pages = dict(zip(target, source, strict=True))
    for each in decodes:
        assert each.wrong(cluster.spec("prefill", **options), pages, {3: 1}) == []


_FEW = [[5, 6, 7, 40], [41, 2]]
_TARGET = [70, 71, 12, 13, 14, 60]


@pytest.mark.parametrize(
    ("chunks", "target"),
    [
        pytest.param([[9]], [33], id="one page"),
        pytest.param([list(range(63, 3, -1))], list(range(10, 70)), id="many pages"),
        pytest.param(_FEW, _TARGET, id="chunks"),
        pytest.param([[5, 6], [7], [40, 41, 2], []], _TARGET, id="an empty last chunk"),
    ],
)
def test_pages_and_metadata_arrive(
    cluster: Cluster, chunks: list[list[int]], target: list[int]
) -> None:
    prefill, decode = cluster.begin("prefill"), cluster.begin("decode")
    prefill.wait_started()
    decode.wait_started()
    transfer([prefill], [decode], _ROOM, chunks, target)
    check(cluster, [decode], chunks, target, {})
    # Expect that nothing is kept, and that the same room may come again.
    assert not any(value for name, value in prefill.counts().items())
    assert not any(value for name, value in decode.counts().items())
    transfer([prefill], [decode], _ROOM, chunks, target)


@pytest.mark.parametrize(
    ("prefills", "decodes", "options"),
    [
        pytest.param(2, 1, {}, id="2 to 1"),
        pytest.param(1, 2, {}, id="1 to 2"),
        pytest.param(2, 2, {}, id="2 to 2"),
        pytest.param(4, 2, {"heads": 2}, id="4 to 2, as many heads"),
        pytest.param(1, 2, {"heads": 1}, id="1 to 2, one head"),
        pytest.param(2, 1, {"mla": True}, id="2 to 1, MLA"),
        pytest.param(1, 2, {"mla": True}, id="1 to 2, MLA"),
        pytest.param(1, 1, {"mla": True}, id="1 to 1, MLA"),
    ],
)
def test_ranks_write_what_each_other_rank_has(
    cluster: Cluster, prefills: int, decodes: int, options: dict[str, Any]
) -> None:
    theirs = cluster.ranks("prefill", prefills, **options)
    ours = cluster.ranks("decode", decodes, **options)
    transfer(theirs, ours, _ROOM, _FEW, _TARGET)
    check(cluster, ours, _FEW, _TARGET, options)


@pytest.mark.parametrize("kind", ["mamba", "swa"])
def test_states_arrive(cluster: Cluster, kind: str) -> None:
    prefill, decode = cluster.rank("prefill", state=kind), cluster.rank("decode", state=kind)
    transfer([prefill], [decode], _ROOM, _FEW, _TARGET, state=([4, 2], [0, 11]))
    pages = dict(zip(_TARGET, [5, 6, 7, 40, 41, 2], strict=True))
    assert decode.wrong(cluster.spec("prefill"), pages, {3: 1}, {0: 4, 11: 2}) == []


@pytest.mark.parametrize(("prefills", "decodes"), [(1, 1), (2, 1)])
@needs_standin
def test_pages_in_gpu_memory(cluster: Cluster, prefills: int, decodes: int) -> None:
    theirs = cluster.ranks("prefill", prefills, cuda=True)
    ours = cluster.ranks("decode", decodes, cuda=True)
    transfer(theirs, ours, _ROOM, _FEW, _TARGET)
    check(cluster, ours, _FEW, _TARGET, {})


@needs_standin
def test_what_is_sent_early_waits_for_its_event(cluster: Cluster) -> None:
    prefill, decode = cluster.rank("prefill", cuda=True), cluster.rank("decode", cuda=True)
    empty = decode.digest()
    assert decode.receiver(_ROOM)
    prefill.sender(_ROOM)
    until(decode, _ROOM, WAITING)
    decode.metadata(_ROOM, _TARGET, 3)
    until(prefill, _ROOM, WAITING)
    prefill.init(_ROOM, 6, 1)
    prefill.hold()
    prefill.send_early(_ROOM, _FEW[0])
    time.sleep(0.1)
    assert decode.digest() == empty
    prefill.let_go()
    prefill.send(_ROOM, _FEW[1])
    until(decode, _ROOM, SUCCESS)
    check(cluster, [decode], _FEW, _TARGET, {})


def test_requests_share_the_ranks(cluster: Cluster) -> None:
    prefill, decode = cluster.rank("prefill"), cluster.rank("decode")
    rooms = range(1, 9)
    for room in rooms:
        # Decode may have asked before prefill has heard of the request.
        assert decode.receiver(room)
        until(decode, room, WAITING)
        decode.metadata(room, [room * 4 + each for each in range(4)], room % 8, None, 2)
    for room in rooms:
        prefill.sender(room)
        until(prefill, room, WAITING)
        assert prefill.init(room, 4, room % 8) == 2  # tokens that decode has
        prefill.send(room, [room, room + 10, room + 20])
    for room in rooms:
        prefill.send(room, [room + 30])
    pages = {}
    for room in rooms:
        until(prefill, room, SUCCESS)
        assert prefill.sent_bytes(room) == 4 * 6 * cluster.spec("prefill").page_bytes()
        until(decode, room, SUCCESS)
        pages |= {room * 4 + each: room + 10 * each for each in range(4)}
    assert (
        decode.wrong(cluster.spec("prefill"), pages, {each % 8: each % 8 for each in rooms}) == []
    )


def test_bootstrapping_until_decode_has_asked(cluster: Cluster) -> None:
    prefill, decode = cluster.rank("prefill"), cluster.rank("decode")
    prefill.sender(_ROOM)
    assert prefill.poll(_ROOM) == BOOTSTRAPPING
    assert decode.receiver(_ROOM)
    until(decode, _ROOM, WAITING)
    assert prefill.poll(_ROOM) == BOOTSTRAPPING
    decode.metadata(_ROOM, _TARGET, 3)
    until(prefill, _ROOM, WAITING)
    assert decode.poll(_ROOM) == WAITING


@pytest.mark.parametrize(
    ("ours", "named"),
    [
        ({"page_tokens": 4}, "--page-size"),
        ({"dtype": "float32"}, "--kv-cache-dtype"),
    ],
)
def test_sglang_refuses_unlike_caches(cluster: Cluster, ours: dict[str, Any], named: str) -> None:
    cluster.rank("prefill")
    decode = cluster.rank("decode", **ours)
    with pytest.raises(RuntimeError, match=named):
        decode.receiver(_ROOM)


@pytest.mark.parametrize(
    ("prefill", "decode", "named"),
    [
        ({}, {"layers": 4}, "speculative decoding"),
        ({}, {"state": "mamba"}, "states beside K and V"),
        ({"heads": 4}, {"heads": 8}, "same model"),
    ],
)
def test_ranks_that_do_not_fit_are_refused_by_name(
    cluster: Cluster, prefill: dict[str, Any], decode: dict[str, Any], named: str
) -> None:
    cluster.rank("prefill", **prefill)
    there = cluster.rank("decode", **decode)
    assert there.receiver(_ROOM)
    until(there, _ROOM, FAILED)
    assert named in there.failure(_ROOM)

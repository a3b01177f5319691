"""What decode does not use goes back to prefill, whenever it hears of it; what is not known yet is waited
for; and nothing that a peer says stops a worker. Two workers of engines as vLLM drives them, in this
process; no model."""

import random
import time
from typing import Any

import kvxfer
import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
import kvxfer.vllm.worker  # noqa: E402
from kvxfer.vllm import messages  # noqa: E402
from kvxfer.vllm.early_releases import EarlyReleases  # noqa: E402
from kvxfer.vllm.log import Limited, shown  # noqa: E402
from kvxfer.vllm.reference import Worker  # noqa: E402
from kvxfer.vllm.step import Abandoned, Expected, GivenUp, Held, Returned, Step, Write  # noqa: E402
from worker_pair import (  # noqa: E402, F401
    DIVISION,
    LAST,
    LAYERS,
    LIMIT_S,
    OURS,
    PROMPT,
    SOON_S,
    TIMEOUT_S,
    Engine,
    counts_reads,
    engines,
    fetch,
    give_back,
    hold,
    lines,
    meet,
    offer,
    same,
    until,
)

_SEED = 60


# --- what differs, and what is not known yet ---


def test_another_prompt_fails_at_once_and_gives_the_blocks_back(
    engines: tuple[Engine, Engine], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = engines
    meet(prefill, decode)
    reads = counts_reads(monkeypatch)
    prefill.step(hold("a"))
    begin = time.monotonic()
    decode.step(fetch(prefill, "a", "another prompt"))
    until(lambda: decode.failed and "here a" in prefill.sent, prefill, decode)
    assert decode.failed["there a"] - begin < SOON_S
    assert prefill.sent["here a"] - begin < SOON_S
    print(f"failed after {decode.failed['there a'] - begin:.4f} s")
    assert reads == ["a/0"], "it was tried again"
    assert "there a" not in decode.loaded
    (line,) = lines
    assert "this prompt is not the one that the prefill engine computed" in line
    assert prefill.worker.stats.data["expired_leases"] == 0


def test_a_lease_that_comes_late_is_waited_for(
    engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = engines
    reads = counts_reads(monkeypatch)
    decode.step(fetch(prefill, "late"))
    end = time.monotonic() + 1.0
    until(lambda: time.monotonic() > end, decode)
    assert not decode.failed
    assert not decode.loaded
    prefill.step(hold("late"))
    until(lambda: decode.loaded and prefill.sent, prefill, decode)
    assert reads == ["late/0"]
    assert same(prefill, decode)


def test_one_that_never_comes_is_waited_for_as_long_as_the_timeout_says(
    engines: tuple[Engine, Engine], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = engines
    reads = counts_reads(monkeypatch)
    begin = time.monotonic()
    decode.step(fetch(prefill, "never"))
    until(lambda: decode.failed, decode)
    assert TIMEOUT_S - 0.5 < decode.failed["there never"] - begin < TIMEOUT_S + SOON_S
    assert len(reads) == 1
    assert 'within 2 s ("timeout")' in lines[0]
    # Decode has said that it wants it no more.
    prefill.step(hold("never"))
    until(lambda: "here never" in prefill.sent, prefill, limit=SOON_S)


def test_the_memory_of_a_worker_that_is_gone_is_not_waited_for(
    engines: tuple[Engine, Engine],
) -> None:
    prefill, decode = engines
    meet(prefill, decode)
    decode.step(fetch(prefill, "late"))
    decode.step()
    prefill.worker.close()
    begin = time.monotonic()
    until(lambda: decode.failed, decode)
    assert time.monotonic() - begin < TIMEOUT_S - 0.5


# --- releases ---


def test_what_decode_returns_is_free_soon(engines: tuple[Engine, Engine]) -> None:
    """Also of an engine that it has not met, which it goes on stepping for."""
    prefill, decode = engines
    prefill.step(hold("a"))
    begin = time.monotonic()
    decode.step(give_back(prefill, "a"))
    until(lambda: not decode.unsent, decode)
    until(lambda: prefill.sent, prefill, limit=SOON_S)
    assert prefill.sent["here a"] - begin < SOON_S
    assert prefill.worker.stats.data["expired_leases"] == 0


def test_one_worker_that_cannot_be_met_keeps_nothing_from_the_others(
    engines: tuple[Engine, Engine],
) -> None:
    prefill, decode = engines
    prefill.step(hold("a"))
    nobody = Worker("127.0.0.1:1", "0" * 32)
    decode.step(Step(returned=[Returned("a", (nobody, prefill.address), None)]))
    until(lambda: prefill.sent and not decode.unsent, prefill, decode)


def test_a_release_that_comes_before_the_lease_is_remembered(
    engines: tuple[Engine, Engine],
) -> None:
    prefill, decode = engines
    meet(prefill, decode)
    decode.step(give_back(prefill, "a"))
    until(lambda: prefill.worker._early.has("a"), prefill, decode)
    begin = time.monotonic()
    prefill.step(hold("a"))
    until(lambda: "here a" in prefill.sent, prefill, limit=SOON_S)
    assert prefill.sent["here a"] - begin < SOON_S
    assert not prefill.worker._early.has("a")
    assert prefill.worker.stats.data["expired_leases"] == 0


def test_a_push_that_was_released_before_it_began_is_not_made(
    engines: tuple[Engine, Engine],
) -> None:
    prefill, decode = engines
    meet(prefill, decode)
    decode.step(give_back(prefill, "a"))
    until(lambda: prefill.worker._early.has("a"), prefill, decode)
    prefill.step(Step(expected=[Expected("a", PROMPT)]))
    until(lambda: any("a" in heard.withdrawn for heard in prefill.heard), prefill, limit=SOON_S)
    # One that comes for it afterwards is told at once.
    decode.step(offer(prefill, decode, "a"))
    until(lambda: decode.failed, prefill, decode, limit=SOON_S)


def test_what_decode_wants_no_more_is_not_written_however_much_is_released_then(
    engines: tuple[Engine, Engine],
) -> None:
    """Prefill is in a long step meanwhile; decode, which was answered, uses the blocks for others."""
    prefill, decode = engines
    meet(prefill, decode)
    decode.step(offer(prefill, decode, "a"))
    decode.step(Step(given_up=[GivenUp("there a")]))
    until(lambda: "there a" in decode.loaded and not _unsettled(decode, "there a"), decode)
    workers = (prefill.address,)
    others = [Returned(f"other-{number}", workers, DIVISION) for number in range(600)]
    decode.step(Step(returned=others))
    until(lambda: prefill.worker._early.has("other-599"), decode)
    assert not prefill.worker._early.has("a"), "the memory is to forget it"
    before = [cache.array.copy() for cache in decode.caches.values()]
    prefill.step(Step(expected=[Expected("a", PROMPT)]))
    until(
        lambda: any("a" in heard.withdrawn | heard.offered.keys() for heard in prefill.heard), prefill
    )
    prefill.step(Step(writes=[Write("here a", "a", 0, OURS, 0, LAST, False, True)]))
    until(lambda: not prefill.worker._pushing.has_any(), prefill, decode)
    assert prefill.worker.stats.data["failed_pushes"] == 1
    for had, cache in zip(before, decode.caches.values(), strict=True):
        assert np.array_equal(had, cache.array)


def _unsettled(decode: Engine, request: str) -> int:
    return sum(heard.unsettled.get(request, 0) for heard in decode.heard)


def test_a_release_of_what_has_ended_is_not_kept(engines: tuple[Engine, Engine]) -> None:
    prefill, decode = engines
    prefill.step(hold("a"))
    decode.step(fetch(prefill, "a"))
    until(lambda: decode.loaded and prefill.sent, prefill, decode)
    decode.step(give_back(prefill, "a"))
    decode.step(give_back(prefill, "b"))
    until(lambda: prefill.worker._early.has("b"), decode)
    assert len(prefill.worker._early) == 1


@pytest.mark.parametrize("first", ["decode", "prefill"])
def test_a_lease_that_cannot_be_granted_costs_no_timeout(
    engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    prefill, decode = engines
    meet(prefill, decode)
    reads = counts_reads(monkeypatch)
    lease = kvxfer.Agent.lease_blocks
    errors: list[Exception] = [kvxfer.InvalidArgument("no such block")]
    errors += [kvxfer.ResourceExhausted("65536 leases are held")] * 3

    def fail(agent: kvxfer.Agent, *arguments: Any, **options: Any) -> None:
        if errors:
            raise errors.pop(0)
        lease(agent, *arguments, **options)

    monkeypatch.setattr(kvxfer.Agent, "lease_blocks", fail)
    steps = [(decode, fetch(prefill, "a")), (prefill, hold("a"))]
    begin = time.monotonic()
    for engine, step in steps if first == "decode" else reversed(steps):
        engine.step(step)
        time.sleep(0.05)
    until(lambda: decode.failed and "here a" in prefill.sent, prefill, decode)
    assert decode.failed["there a"] - begin < SOON_S
    assert prefill.sent["here a"] - begin < SOON_S
    assert not errors
    assert reads == ["a/0"]
    until(lambda: not prefill.worker._holding.has_any(), prefill)


@pytest.mark.parametrize("first", ["decode", "prefill"])
def test_a_push_of_what_prefill_has_not_admitted_fails_at_once(
    engines: tuple[Engine, Engine], lines: list[str], first: str
) -> None:
    prefill, decode = engines
    meet(prefill, decode)
    abandoned = Abandoned("here a", "a", "it was not admitted", held=False)
    steps = [(decode, offer(prefill, decode, "a")), (prefill, Step(abandoned=[abandoned]))]
    begin = time.monotonic()
    for engine, step in steps if first == "decode" else reversed(steps):
        engine.step(step)
        time.sleep(0.05)
        prefill.step()
    until(lambda: decode.failed, prefill, decode)
    assert decode.failed["there a"] - begin < SOON_S
    (line,) = lines
    why = "it was not admitted" if first == "decode" else "this engine does not know the request"
    assert why in line


def test_an_engine_gives_back_to_itself(engines: tuple[Engine, Engine]) -> None:
    """A proxy sends a reference that nobody will use to the engine that made it."""
    prefill, _ = engines
    prefill.step(hold("a"))
    prefill.step(give_back(prefill, "a"))
    until(lambda: "here a" in prefill.sent, prefill, limit=SOON_S)


def test_a_push_of_another_prompt_ends_at_both_sides(
    engines: tuple[Engine, Engine], lines: list[str]
) -> None:
    prefill, decode = engines
    meet(prefill, decode)
    for order in ("prefill first", "decode first"):
        steps = [
            (prefill, Step(expected=[Expected(order[:6], PROMPT)])),
            (decode, offer(prefill, decode, order[:6], "another prompt")),
        ]
        begin = time.monotonic()
        for engine, step in steps if order == "prefill first" else reversed(steps):
            engine.step(step)
            time.sleep(0.05)
        request = f"there {order[:6]}"
        until(lambda request=request: request in decode.failed, prefill, decode)
        assert decode.failed[request] - begin < SOON_S
        assert any(order[:6] in heard.withdrawn for heard in prefill.heard)
        assert all("this prompt is not the one" in line for line in lines)
        assert len(lines) == 2, "one a side"
        lines.clear()


def test_room_for_what_is_held_to_be_read_is_refused(engines: tuple[Engine, Engine]) -> None:
    prefill, decode = engines
    prefill.step(hold("a"))
    decode.step(offer(prefill, decode, "a"))
    until(lambda: decode.failed and prefill.sent, prefill, decode, limit=2 * SOON_S)


def test_no_line_of_the_log_has_what_a_prompt_hashes_to(
    lines: list[str],
) -> None:
    prefill, decode = Engine("prefill", 1, lease=0.3), Engine("decode", 11)
    prefill.step(hold("a"))
    prefill.step(hold("b"))
    decode.step(fetch(prefill, "a", "another"))
    until(lambda: len(prefill.sent) == 2 and decode.failed, prefill, decode)
    assert any("nobody fetched b (cache 0 of request here b) in time" in line for line in lines)
    assert not [line for line in lines if PROMPT in line]
    for engine in (prefill, decode):
        engine.worker.close()


# --- leases of the step that computes, which the scheduler confirms later ---


def _held(transfer: str) -> Step:
    return Step(held=[Held(f"here {transfer}", transfer, PROMPT, OURS, confirmed=False)])


def test_the_end_of_a_lease_is_told_when_it_is_confirmed(
    engines: tuple[Engine, Engine],
) -> None:
    """Before that vLLM may have forgotten the request, or may not have ended it."""
    prefill, decode = engines
    prefill.step(_held("a"))
    decode.step(fetch(prefill, "a"))
    until(lambda: decode.loaded, prefill, decode)
    for _ in range(20):
        prefill.step()
    assert not prefill.sent
    prefill.step(Step(confirmed=["a"]))
    until(lambda: prefill.sent, prefill)
    prefill.step(_held("b"))
    prefill.step(Step(confirmed=["b"]))
    decode.step(give_back(prefill, "b"))
    until(lambda: "here b" in prefill.sent, prefill, decode)


def test_a_lease_that_is_dropped_has_no_end(engines: tuple[Engine, Engine]) -> None:
    prefill, _ = engines
    for transfer in ("a", "b"):
        prefill.step(_held(transfer))
    prefill.step(Step(dropped=["a"]))
    until(lambda: not prefill.worker._holding._leases.keys() >= {"a"}, prefill)
    prefill.step(Step(confirmed=["b"], dropped=["a"]))
    prefill.step(Step(revoked=["b"]))
    until(lambda: "here b" in prefill.sent, prefill)
    assert "here a" not in prefill.sent


def test_what_is_revoked_before_it_is_granted_is_never_read(
    engines: tuple[Engine, Engine],
) -> None:
    prefill, decode = engines
    step = hold("a")
    step.revoked = ["a"]
    prefill.step(step)
    assert "here a" in prefill.sent
    decode.step(fetch(prefill, "a"))
    until(lambda: decode.failed, prefill, decode)


# --- what peers say ---


def _hostile() -> list[bytes]:
    """Notifications in every shape that one can send."""
    values: list[Any] = [
        None, True, -1, 1.5, 2**70, 1e308, "", "x", "\ud800", "\n" * 9, "é" * 300, [], [[]], [1], {},
        {"a": []}, [["a", "b", "c", "d"]], [[0, [0, 2**31], 0, 2**31]], [["\ud800", "0" * 32]],
        [["h:1", "0" * 32]], [[0, [0, 1], 0, 5]], float("inf"), float("nan"), "a" * 5000,
    ]  # fmt: skip
    fields = (
        "lease", "from", "rank", "seconds", "workers", "tp", "layers", "parts", "block_tokens", "contents", "why",
    )  # fmt: skip
    randomness = random.Random(_SEED)
    print(f"seed: {_SEED}")
    said: list[Any] = [{}, {"do": []}, {"do": "arrived"}, {"do": "fly", "lease": "a"}]
    said += [{"do": do} for do in ("renew", "return", "offer", "alive", "refuse")]
    for do in ("renew", "return", "offer", "alive", "refuse"):
        good = {"lease": f"of {do}".replace(" ", "-"), "from": "127.0.0.1:1", "rank": 0, "seconds": 1, "contents": "c"}
        good |= {"workers": [["127.0.0.1:1", "0" * 32]], "block_tokens": [16], "why": "so"}
        good |= {"parts": [[0, [0, 3], 0, 40]], "do": do, "tp": 1, "layers": [[2]]}
        looked_at = fields if do == "offer" else ("lease", "from", "why")
        said += [good | {field: value} for field in looked_at for value in values]
        for _ in range(20):
            several = randomness.sample(fields, 3)
            said.append(good | {field: randomness.choice(values) for field in several})
    deep = '{"do": "refuse", "lease": "a", "why": ' + "[" * 900 + "]" * 900 + "}"
    packed = [piece for each in said for piece in messages.encode(each)]
    piece = messages.encode({"do": "renew", "lease": "a"})[0]
    raw = [b"", b"\xff" * 40, piece[:13], piece[:20], piece[:14] + b"\0" * 30, b"kvc1" + b"\1" * 60]
    return [*packed, *raw, _packed(deep), _packed("[" * 5000), _packed("7" * 5000), _packed('"')]


def _packed(text: str) -> bytes:
    import zlib

    body = zlib.compress(text.encode())
    return b"kvc1" + b"\0" * 8 + bytes([0, 1]) + body


def test_nothing_that_a_peer_says_stops_a_worker(
    engines: tuple[Engine, Engine], lines: list[str]
) -> None:
    prefill, decode = engines
    meet(prefill, decode)
    with kvxfer.Agent('a "stränge" peer') as stranger:
        name = stranger.add_peer(kvxfer.fetch_metadata(prefill.address.address, 5))
        for said in _hostile():
            stranger.notify(name, said).wait(LIMIT_S)
            prefill.step()
        stranger.notify(name, messages.encode({"do": "return", "lease": "last"})[0]).wait(5)
        until(lambda: prefill.worker._early.has("last"), prefill)
        # The engine takes what the listener has left to it.
        prefill.step()
    assert prefill.worker._listener.is_alive()
    assert lines, "nothing was said of it"
    assert len(lines) < 60, "one peer fills the log"
    assert all(line.isprintable() and len(line) < 1200 for line in lines)
    prefill.step(hold("b"))
    decode.step(fetch(prefill, "b"))
    until(lambda: "there b" in decode.loaded, prefill, decode)


def test_early_releases_are_bounded_and_pass() -> None:
    early = EarlyReleases()
    for number in range(5000):
        early.add("loud", f"l{number}")
    assert len(early) == 512
    early.add("quiet", "q")
    assert early.has("q")
    assert early.has("l4999")
    assert not early.has("l0")
    for peer in range(100):
        for number in range(100):
            early.add(f"peer {peer}", f"{peer}-{number}")
    assert len(early) == 4096
    assert early.has("q"), "the one with the most gives way"
    assert early.take("q")
    assert not early.take("q")
    early.add("quiet", "q")
    early.add("loud", "q")  # whoever says it: it is one
    assert early.take("q")
    early.add("quiet", "q")
    early.add("loud", "q")
    for number in range(600):
        early.add("loud", f"l{number}")
    assert early.take("q"), "it is still the first one's"
    brief = EarlyReleases(kept=0.05)
    brief.add("loud", "l")
    brief.add("quiet", "q")
    time.sleep(0.1)
    assert not brief.has("l")
    assert len(brief) == 0


def test_warnings_of_one_cause_are_limited(lines: list[str]) -> None:
    limited = Limited(lines=2, period=0.2)
    for number in range(50):
        limited.warning("one", "%s of one", number)
        limited.warning("other", "%s of the other", number)
    assert sorted(lines) == sorted(
        f"kvxfer: {number} of {which}" for number in range(2) for which in ("one", "the other")
    )
    time.sleep(0.25)
    limited.warning("one", "once more")
    assert lines[-1] == "kvxfer: once more (48 like this were left out before)"


def test_what_is_shown_is_one_line_that_only_prints() -> None:
    assert shown("größe 1") == "größe 1"
    assert shown("a\nb\x1b[2J\ud800\u202e") == "a\\nb\\x1b[2J\\ud800\\u202e"
    assert shown("x" * 1000) == "x" * 300 + "..."
    assert shown(ValueError("what")) == "what"


def test_a_write_for_a_push_that_has_ended_is_none(engines: tuple[Engine, Engine]) -> None:
    """The scheduler may not have heard of the end yet."""
    prefill, decode = engines
    meet(prefill, decode)
    prefill.step(Step(expected=[Expected("a", PROMPT)]))
    decode.step(offer(prefill, decode, "a", "another prompt"))
    until(lambda: decode.failed, prefill, decode)
    prefill.step(Step(abandoned=[Abandoned("here a", "a", "decode wants it no more", held=False)]))
    until(lambda: "a" in prefill.worker._pushing._over, prefill)
    before = decode.caches[LAYERS[0]].array.copy()
    prefill.step(Step(writes=[Write("here a", "a", 0, OURS, 0, LAST, False, True)]))
    end = time.monotonic() + 0.05
    until(lambda: time.monotonic() > end, prefill, decode)
    assert np.array_equal(before, decode.caches[LAYERS[0]].array)

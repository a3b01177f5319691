"""Engines and connections that fail under KvxferConnector: tokens are those of one engine alone, no
request waits for ever, and every block is free again."""

import copy
import dataclasses
import os
import random
import time
from collections.abc import Iterator, Mapping

import pytest
from conversation import TRANSFERRED_TOKENS, Conversation, counted, make_prompts
from engine import Engine, Request, Transfer, wait_for
from engine_pair import KVXFER, Connector, Pair, StartPair
from pushes import beside, known_of, prefill_to_push
from relay import Relay, fixed_port
from storm import Storm

_SEED = 40
_TOKENS = 500  # of a prompt: 1 MB of KV
_MIDDLE = 200_000  # bytes of it
_NAMES = tuple("abcdefghijkl")
_FILLING = _NAMES[3:]  # as many as fill the pool, none of those that _begin_all() transfers
_BLOCKS = 160
_LEASE_S = 2.0
_EXTRA = {"host": "127.0.0.1", "lease": _LEASE_S, "timeout": 2.0, "handshake_timeout": 1.0}
# Until a request whose prefill engine fails is computed by decode: the longest of the times above,
# once more, and a busy machine.
_PATIENCE_S = 10.0


@dataclasses.dataclass
class _Ways:
    """Between the engines."""

    to_prefill: Relay
    to_decode: Relay
    connectors: tuple[Connector, Connector]

    @property
    def both(self) -> tuple[Relay, Relay]:
        return self.to_prefill, self.to_decode

    def unblock(self) -> None:
        for way in self.both:
            way.unblock()


@pytest.fixture(scope="module")
def ways() -> Iterator[_Ways]:
    relays, connectors = [], []
    for _ in range(2):
        port = fixed_port()
        relays.append(Relay(port))
        extra = {
            "port_range": str(port),
            "backends": ["tcp"],
            "agent_options": {"advertise": f"127.0.0.1:{relays[-1].port}"},
        }
        connectors.append(dataclasses.replace(KVXFER, extra=_EXTRA | extra))
    yield _Ways(relays[0], relays[1], (connectors[0], connectors[1]))
    for relay in relays:
        relay.close()


@pytest.fixture(scope="module")
def pair(start_pair: StartPair, ways: _Ways) -> Pair:
    prefill, decode = ways.connectors
    # Few blocks, so that a late byte finds them used again; prompts of several chunks.
    pair = start_pair(
        prefill, decode, num_gpu_blocks_override=_BLOCKS, max_num_batched_tokens=128
    )
    for engine in pair.engines:
        engine.serve()
    return pair


@pytest.fixture(scope="module")
def talk(pair: Pair) -> Conversation:
    return Conversation(pair, make_prompts(_SEED, dict.fromkeys(_NAMES, _TOKENS)))


@pytest.fixture(autouse=True)
def _all_comes_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test each engine that runs has as many free blocks as at its start."""
    yield
    if "pair" in request.fixturenames:
        engines = request.getfixturevalue("pair").engines
        _blocks_come_back(*(engine for engine in engines if engine.runs()))


def _blocks_come_back(*engines: Engine) -> None:
    for engine in engines:
        assert engine.idle(_LEASE_S + _PATIENCE_S), f"{engine.name} still has something to do"
        assert engine.free_blocks() == engine.wait_until_up()["free_blocks"], engine.name
        assert engine.forget()


def _restart(engine: Engine, config: Mapping[str, object] | None = None) -> None:
    engine.restart(config)
    engine.serve()


def _known(talk: Conversation) -> dict[str, object]:
    """What a proxy remembers of prefill. Decode has not met it for that."""
    (answer,) = talk.pair.prefill.generate(Request([11, 12, 13], 1, {"do_remote_decode": True}))
    assert answer.transfer
    return known_of(answer.transfer)


def _references(talk: Conversation, pull: str, push: str, begun: str) -> dict[str, Transfer]:
    """For decode: a prompt whose blocks it is to read, one that prefill is to write, and one that
    prefill is to write while it is computed, of which prefill has not heard."""
    _, room = beside(talk, begun, _known(talk))
    assert room.transfer
    return talk.prefill(pull) | prefill_to_push(talk, push) | {begun: room.transfer}


def _are_computed(talk: Conversation, transfers: Mapping[str, Transfer]) -> None:
    """By decode, soon."""
    before, begin = talk.pair.decode.metrics(), time.monotonic()
    assert talk.decode(transfers) == talk.expected(*transfers)
    assert counted(talk.pair.decode, before)[TRANSFERRED_TOKENS] == 0
    assert time.monotonic() - begin < _PATIENCE_S
    assert talk.pair.decode.forget()


def _are_transferred(talk: Conversation) -> None:
    """New requests of every kind."""
    pull, push, begun = "ghi"
    prefill, decode = beside(talk, begun, _known(talk))
    before = talk.pair.decode.metrics()
    transfers = talk.prefill(pull) | prefill_to_push(talk, push)
    assert talk.decode(transfers) == talk.expected(pull, push)
    talk.pair.decode.add(decode)
    talk.pair.prefill.add(prefill)
    answers = wait_for(talk.pair.engines, {prefill.name, begun})
    assert answers[begun].tokens == talk.alone[begun]
    assert counted(talk.pair.decode, before)[TRANSFERRED_TOKENS] == 3 * _TOKENS
    _blocks_come_back(*talk.pair.engines)


def _begin_all(talk: Conversation, ways: _Ways) -> None:
    """One request of every kind: a and b are written, one of them in the middle of it, c is in the
    middle of being read."""
    pull, push, begun = "cab"
    prefill, decode = beside(talk, begun, _known(talk))
    transfers = talk.prefill(pull) | prefill_to_push(talk, push)
    ways.to_decode.block_after(_MIDDLE)
    talk.pair.decode.add(talk.request(push, transfers[push]))
    talk.pair.decode.add(decode)
    talk.pair.prefill.add(prefill)
    ways.to_decode.wait_until_blocked()
    ways.to_prefill.block_after(_MIDDLE)
    talk.pair.decode.add(talk.request(pull, transfers[pull]))
    ways.to_prefill.wait_until_blocked()


def _are_answered(talk: Conversation, *names: str) -> None:
    """By decode, to which they were given before."""
    for name, answer in wait_for([talk.pair.decode], names, _PATIENCE_S).items():
        assert answer.tokens == talk.alone[name], name


def _fill(talk: Conversation) -> None:
    """All blocks of decode with other prompts, which stay in its cache: a late byte would show in what
    is answered the next time."""
    prompts = [Request(talk.prompts[name], 8) for name in _FILLING]
    for name, answer in zip(_FILLING, talk.pair.decode.generate(*prompts), strict=True):
        assert answer.tokens == talk.alone[name][:8], name


# --- prefill dies ---


def test_prefill_dies_before_decode_has_met_it_and_is_restarted(talk: Conversation) -> None:
    transfers = _references(talk, "a", "b", "c")
    talk.pair.prefill.kill()
    _are_computed(talk, transfers)
    _restart(talk.pair.prefill)
    _are_computed(talk, transfers)  # of an earlier life at the same port
    _are_transferred(talk)
    _are_computed(talk, transfers)


def test_prefill_dies_when_decode_has_met_it(talk: Conversation) -> None:
    _are_transferred(talk)
    transfers = _references(talk, "a", "b", "c")
    talk.pair.prefill.kill()
    _are_computed(talk, transfers)
    _restart(talk.pair.prefill)
    _are_transferred(talk)


def test_prefill_dies_in_the_middle_of_transfers(talk: Conversation, ways: _Ways) -> None:
    _begin_all(talk, ways)
    talk.pair.prefill.kill()
    ways.unblock()
    _are_answered(talk, *"abc")
    _blocks_come_back(talk.pair.decode)
    _restart(talk.pair.prefill)
    _are_transferred(talk)


# --- decode dies ---


def test_decode_dies_while_prefill_keeps_blocks_for_it(talk: Conversation, ways: _Ways) -> None:
    """That it has not asked for, is reading, is being written; and having offered room for a prompt
    that prefill has not heard of."""
    prefill, decode = talk.pair.engines
    _are_transferred(talk)
    late, room = beside(talk, "f", _known(talk))
    decode.add(room)
    assert not decode.poll(0.2)  # the offer has gone
    transfers = talk.prefill("d") | prefill_to_push(talk, "e")
    _begin_all(talk, ways)
    assert prefill.free_blocks() < prefill.wait_until_up()["free_blocks"]
    decode.kill()
    ways.unblock()
    prefill.add(late)
    assert wait_for([prefill], {late.name})[late.name].reason == "length"
    _blocks_come_back(prefill)
    _restart(decode)
    _are_computed(talk, transfers)  # their leases are over
    _are_transferred(talk)


# --- connections, and engines that stop ---


def test_connections_are_cut_and_made_anew(talk: Conversation, ways: _Ways) -> None:
    _are_transferred(talk)
    for way in (*ways.both, None):
        _begin_all(talk, ways)
        for each in (way,) if way else ways.both:
            each.cut()
        ways.unblock()
        _are_answered(talk, *"abc")
        _are_transferred(talk)
    made = [way.connections for way in ways.both]
    for way in ways.both:
        way.cut()
    _are_transferred(talk)
    assert all(way.connections > before for way, before in zip(ways.both, made, strict=True))


def test_bytes_that_come_late_harm_nobody(talk: Conversation, ways: _Ways) -> None:
    """They are on the way until decode has computed the prompts itself, and used all blocks that it
    has for others."""
    _are_transferred(talk)
    _begin_all(talk, ways)
    _are_answered(talk, *"abc")
    _fill(talk)
    ways.unblock()
    assert talk.pair.decode.idle(_PATIENCE_S)
    _fill(talk)
    _blocks_come_back(*talk.pair.engines)
    _are_transferred(talk)


def test_prefill_stops_and_goes_on(talk: Conversation, ways: _Ways) -> None:
    prefill, decode = talk.pair.engines
    _are_transferred(talk)
    late, room = beside(talk, "f", _known(talk))
    decode.add(room)
    assert not decode.poll(0.2)  # the offer has gone
    _begin_all(talk, ways)
    prefill.pause()
    ways.unblock()
    try:
        _are_answered(talk, *"abcf")
        _fill(talk)
    finally:
        prefill.proceed()
    prefill.add(late)  # for room that decode has given up
    assert wait_for([prefill], {late.name})[late.name].reason == "length"
    assert prefill.idle(_PATIENCE_S)
    _fill(talk)
    _blocks_come_back(*talk.pair.engines)
    _are_transferred(talk)


def test_decode_stops_and_goes_on(talk: Conversation, ways: _Ways) -> None:
    """For longer than what prefill keeps for it is kept."""
    prefill, decode = talk.pair.engines
    _begin_all(talk, ways)
    transfers = talk.prefill("d") | prefill_to_push(talk, "e")
    decode.pause()
    ways.unblock()
    try:
        _blocks_come_back(prefill)
    finally:
        decode.proceed()
    _are_answered(talk, *"abc")
    _are_computed(talk, transfers)
    _are_transferred(talk)


def test_a_reference_that_two_requests_have_at_once(talk: Conversation) -> None:
    transfers = talk.prefill("a") | prefill_to_push(talk, "b")
    decode = talk.pair.decode
    for name, transfer in transfers.items():
        for which in ("first", "second"):
            decode.add(dataclasses.replace(talk.request(name, transfer), name=f"{name} {which}"))
    expected = {f"{name} {which}": name for name in transfers for which in ("first", "second")}
    for name, answer in wait_for([decode], expected.keys(), _PATIENCE_S).items():
        assert answer.tokens == talk.alone[expected[name]], name


def test_policy_fail_ends_what_a_dead_engine_was_to_send(
    talk: Conversation, ways: _Ways
) -> None:
    """The last of this pair: one engine is dead then, and the other fails what it cannot load."""
    prefill, decode = talk.pair.engines
    config = copy.deepcopy(dict(decode.config))
    config["kv_transfer_config"]["kv_load_failure_policy"] = "fail"
    _restart(decode, config)
    _begin_all(talk, ways)
    decode.add(talk.request("d"))
    prefill.kill()
    ways.unblock()
    answers = wait_for([decode], "abcd", _PATIENCE_S)
    assert answers.pop("d").tokens == talk.alone["d"]
    failed = [answer for answer in answers.values() if answer.reason == "error"]
    assert len(failed) >= 2  # of a and b one may have been whole
    assert not any(answer.tokens for answer in failed)
    for answer in answers.values():
        assert answer in failed or answer.tokens == talk.alone[answer.name]
    _blocks_come_back(decode)
    assert decode.generate(talk.request("e"))[0].tokens == talk.alone["e"]


# --- all of it at once ---


def test_a_storm(start_pair: StartPair) -> None:
    """Over what the host has, shared memory first."""
    pair = start_pair(
        dataclasses.replace(KVXFER, extra=_EXTRA),
        num_gpu_blocks_override=_BLOCKS,
        max_num_batched_tokens=128,
    )
    for engine in pair.engines:
        engine.serve()
    seed = int(os.environ.get("KVXFER_STORM_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"seed of the storm: {seed}")
    randomness = random.Random(seed)
    lengths = {f"prompt {k}": randomness.randint(1, 500) for k in range(36)}
    talk = Conversation(pair, make_prompts(seed, lengths), new_tokens=8)
    storm = Storm(
        talk,
        randomness,
        count=200,
        prefill_kills={randomness.randint(30, 60), randomness.randint(130, 160)},
        decode_kills={randomness.randint(80, 110)},
        prefill_pauses=set(randomness.sample(range(10, 190), 3)),
        decode_pauses=set(randomness.sample(range(10, 190), 3)),
    )
    storm.run()
    print(f"{storm.answered} answered, {storm.aborted} aborted")
    assert storm.answered + storm.aborted == storm.count
    assert counted(pair.decode)[TRANSFERRED_TOKENS] > 0
    _blocks_come_back(*pair.engines)

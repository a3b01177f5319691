"""Engines and connections that fail under KvxferConnector: tokens are those of one engine alone, no
request waits for ever, and every block is free again."""

import copy
import dataclasses
import time
from collections.abc import Iterator, Mapping

import pytest
from conversation import TRANSFERRED_TOKENS, Conversation, counted, make_prompts
from engine import Engine, Request, Transfer, wait_for
from engine_pair import KVXFER, Connector, Pair, StartPair
from pushes import beside, known_of, prefill_to_push
from relay import Relay, fixed_port

_SEED = 40
_TOKENS = 500  # of a prompt: 1 MB of KV
_MIDDLE = 200_000  # bytes of it
_NAMES = tuple("abcdefghi")  # as many as fill the pool
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

    def cut(self) -> None:
        for way in self.both:
            way.cut()


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
    yield
    if "pair" in request.fixturenames:
        _blocks_come_back(request.getfixturevalue("pair"))


def _blocks_come_back(pair: Pair) -> None:
    for engine in pair.engines:
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
    _blocks_come_back(talk.pair)


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


def _begin_all(talk: Conversation, ways: _Ways) -> None:
    """One request of every kind, each in the middle of its transfer: a and b are written, c is
    read."""
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


def _all_are_answered(talk: Conversation) -> None:
    begin = time.monotonic()
    for name, answer in wait_for([talk.pair.decode], "abc", 60).items():
        assert answer.tokens == talk.alone[name], name
        print(name, time.monotonic() - begin)
    assert time.monotonic() - begin < _PATIENCE_S


def _fill(talk: Conversation) -> None:
    """All blocks of decode with prompts, which stay in its cache: a late byte would show in what is
    answered the next time."""
    prompts = [Request(prompt, 8) for prompt in talk.prompts.values()]
    for name, answer in zip(talk.prompts, talk.pair.decode.generate(*prompts), strict=True):
        assert answer.tokens == talk.alone[name][:8], name


def test_prefill_stops_and_goes_on(talk: Conversation, ways: _Ways) -> None:
    _are_transferred(talk)
    _begin_all(talk, ways)
    talk.pair.prefill.pause()
    for way in ways.both:
        way.unblock()
    try:
        _all_are_answered(talk)
        _fill(talk)
    finally:
        talk.pair.prefill.proceed()
    assert talk.pair.prefill.idle(_PATIENCE_S)
    _fill(talk)
    _blocks_come_back(talk.pair)
    _are_transferred(talk)

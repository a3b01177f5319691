"""Prefill in one engine of vLLM, decode in another, KvxferConnector between them: tokens are those of
one engine alone, all of the prompt has come over, and every block is free again."""

import copy
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from conversation import (
    EXTERNAL_TOKENS,
    LOCAL_TOKENS,
    TRANSFERRED_TOKENS,
    Conversation,
    counted,
    make_prompts,
)
from engine import Request, Transfer, wait_for
from engine_pair import BLOCK_SIZE, KVXFER, Pair, StartPair
from pushes import beside, known_of, prefill_to_push
from tiny_model import LAYERS, kv_block_bytes

_SEED = 30
# Around the bounds of a block, of several, and of a chunk of prefill; 95 and 159 are where the first
# token that the last one sees through a window of 64 is the last of a block.
_LENGTHS = (1, 31, 32, 33, 64, 95, 159, 200, 517)
_PREFIX_BLOCKS = 4
_LOADS = "vllm:kvxfer_load_seconds_count"
_BYTES = "vllm:kvxfer_load_bytes"
_FAILED = "vllm:kvxfer_failed_loads"
_RETRIES = "vllm:kvxfer_retries"
_EXPIRED = "vllm:kvxfer_expired_leases"
_LEASE_S = 2
_CONNECTOR = dataclasses.replace(KVXFER, extra={"host": "127.0.0.1", "lease": _LEASE_S, "timeout": 2, "handshake_timeout": 1})


@pytest.fixture(scope="module", params=[None, 64], ids=["full", "window"])
def pair(start_pair: StartPair, request: pytest.FixtureRequest) -> Pair:
    # Prompts of more than one chunk, so that layers are written while later ones are computed.
    pair = start_pair(_CONNECTOR, window=request.param, max_num_batched_tokens=128)
    for engine in pair.engines:
        engine.serve()
    return pair


@pytest.fixture(scope="module")
def talk(pair: Pair) -> Conversation:
    others = ("other", "aborted", "negative")
    lengths = {str(length): length for length in _LENGTHS} | dict.fromkeys(others, 150)
    prompts = make_prompts(_SEED, lengths | {"same prefix": 228})
    common = _PREFIX_BLOCKS * BLOCK_SIZE
    prompts["same prefix"][:common] = prompts["200"][:common]
    return Conversation(pair, prompts)


@pytest.fixture(autouse=True)
def _all_comes_back(pair: Pair) -> Any:
    """After every test each engine has as many free blocks as at its start."""
    yield
    pair.assert_all_comes_back(_LEASE_S + 10)


def _has_window(pair: Pair) -> bool:
    return len(pair.decode.wait_until_up()["kv_groups"]) > 1


def _loaded(pair: Pair, tokens: int) -> int:
    """Of a prompt: with a window decode computes the last token before it asks."""
    return tokens - 1 if _has_window(pair) else tokens


@functools.cache
def _known(pair: Pair) -> dict[str, Any]:
    """What a proxy remembers of prefill."""
    prompt = [11, 12, 13]
    (answer,) = pair.prefill.generate(Request(prompt, 1, {"do_remote_decode": True}))
    assert answer.transfer
    pair.decode.generate(Request(prompt, 1, answer.transfer))  # and gives it back
    return known_of(answer.transfer)


def _push(name: str, talk: Conversation) -> tuple[Request, Request]:
    return beside(talk, name, _known(talk.pair))


def test_models_have_the_groups_that_are_meant(pair: Pair, request: pytest.FixtureRequest) -> None:
    groups = pair.prefill.wait_until_up()["kv_groups"]
    assert len(groups) == (2 if "window" in request.node.name else 1)


def test_pull_answers_as_one_engine(talk: Conversation) -> None:
    names = [str(length) for length in _LENGTHS]
    before = talk.pair.decode.metrics()
    assert talk.decode(talk.prefill(*names)) == talk.expected(*names)

    fetched = counted(talk.pair.decode, before)
    loaded = [_loaded(talk.pair, length) for length in _LENGTHS]
    assert fetched[EXTERNAL_TOKENS] == sum(loaded)
    assert fetched[LOCAL_TOKENS] == fetched[_FAILED] == 0
    assert fetched[_LOADS] == sum(tokens > 0 for tokens in loaded)
    # vLLM computes a prompt of one token whatever was loaded.
    assert fetched[TRANSFERRED_TOKENS] == sum(tokens for tokens in loaded if tokens > 1)
    if not _has_window(talk.pair):
        blocks = sum(-(-length // BLOCK_SIZE) for length in _LENGTHS)
        assert fetched[_BYTES] == blocks * LAYERS * kv_block_bytes(BLOCK_SIZE)


def test_only_a_window_of_windowed_layers_is_read(talk: Conversation) -> None:
    if not _has_window(talk.pair):
        return
    before = talk.pair.decode.metrics()
    talk.decode(talk.prefill("517"))
    whole, window = -(-516 // BLOCK_SIZE), 3
    assert counted(talk.pair.decode, before)[_BYTES] == (whole + window) * (
        LAYERS // 2
    ) * kv_block_bytes(BLOCK_SIZE)


def test_what_decode_has_is_not_read(talk: Conversation) -> None:
    """A prompt that begins as an earlier one: only the blocks after the common ones are read."""
    talk.decode(talk.prefill("200"))
    before = talk.pair.decode.metrics()
    assert talk.decode(talk.prefill("same prefix")) == talk.expected("same prefix")
    fetched = counted(talk.pair.decode, before)
    # Of layers with a window only the last blocks were read: there is no prefix to be had of them.
    common = 0 if _has_window(talk.pair) else _PREFIX_BLOCKS * BLOCK_SIZE
    rest = _loaded(talk.pair, len(talk.prompts["same prefix"])) - common
    assert (fetched[LOCAL_TOKENS], fetched[EXTERNAL_TOKENS]) == (common, rest)


def test_what_was_loaded_is_a_prefix_for_others(talk: Conversation) -> None:
    """And at every bound: a block that had come half would show now."""
    talk.decode(talk.prefill("517"))
    for length in (33, 64, 95, 96, 159, 300, 517):
        prompt = talk.prompts["517"][:length]
        (alone,) = talk.pair.prefill.generate(Request(prompt, 8))
        (again,) = talk.pair.decode.generate(Request(prompt, 8))
        assert again.tokens == alone.tokens, length


def test_push_after_prefill_answers_as_one_engine(talk: Conversation) -> None:
    names = [str(length) for length in _LENGTHS]
    before = talk.pair.decode.metrics()
    transfers = prefill_to_push(talk, *names)
    assert all(transfer["kvxfer"]["mode"] == "push" for transfer in transfers.values())
    assert talk.decode(transfers) == talk.expected(*names)
    fetched = counted(talk.pair.decode, before)
    assert fetched[TRANSFERRED_TOKENS] == sum(
        tokens for tokens in map(lambda n: _loaded(talk.pair, n), _LENGTHS) if tokens > 1
    )
    assert fetched[_FAILED] == 0


@pytest.mark.parametrize("first", ["decode", "prefill"])
def test_push_beside_prefill_answers_as_one_engine(talk: Conversation, first: str) -> None:
    for name in (str(length) for length in _LENGTHS if length > 1):
        prefill, decode = _push(name, talk)
        before = talk.pair.decode.metrics()
        order = [(talk.pair.decode, decode), (talk.pair.prefill, prefill)]
        for engine, request in order if first == "decode" else order[::-1]:
            engine.add(request)
        answers = wait_for(talk.pair.engines, {name, f"{name}-p"})
        assert answers[name].tokens == talk.alone[name], name
        fetched = counted(talk.pair.decode, before)
        assert fetched[TRANSFERRED_TOKENS] == _loaded(talk.pair, len(decode.prompt)), name
        assert fetched[_FAILED] == 0
        assert talk.pair.decode.forget()
        assert talk.pair.prefill.idle(10)
        assert talk.pair.prefill.forget()


# --- references that are not what they should be: the right tokens all the same ---


def _spoiled(**fields: Any) -> Callable[[Transfer], None]:
    return lambda transfer: transfer["kvxfer"].update(fields)


def _swap(transfer: Transfer) -> None:
    transfer["kvxfer"]["blocks"] = [ids[:-2] + [ids[-2] + 1, ids[-1]] for ids in transfer["kvxfer"]["blocks"]]


def _workers(address: str | None = None, life: str | None = None) -> Callable[[Transfer], None]:
    def spoil(transfer: Transfer) -> None:
        (worker,) = transfer["kvxfer"]["workers"]
        transfer["kvxfer"]["workers"] = [[address or worker[0], life or worker[1]]]

    return spoil


_SPOILERS: dict[str, Callable[[Transfer], None]] = {
    "an unknown transfer": _spoiled(transfer="0" * 24),
    "other blocks": _swap,
    "blocks out of range": _spoiled(blocks=[[4_000_000_000, 5]]),
    "no blocks": _spoiled(blocks=[]),
    "half of a run": _spoiled(blocks=[[1, 2, 3]]),
    "blocks by the billion": _spoiled(blocks=[[0, 4_000_000_000]]),
    "fewer tokens": _spoiled(tokens=100),
    "more tokens": _spoiled(tokens=100_000),
    "no tokens": _spoiled(tokens=0),
    "negative tokens": _spoiled(tokens=-1),
    "blocks of later tokens": _spoiled(first_blocks=[1]),
    "smaller blocks": _spoiled(block_tokens=[16]),
    "no lease": _spoiled(lease=0),
    "another model": _spoiled(fingerprint={"weights": "0123456789ab"}),
    "no fingerprint": _spoiled(fingerprint=None),
    "another version": _spoiled(version=1),
    "another mode": _spoiled(mode="steal"),
    "push of what is held": _spoiled(mode="push"),
    "no workers": _spoiled(workers=[]),
    "two workers": lambda t: t["kvxfer"].update(workers=t["kvxfer"]["workers"] * 2),
    "nobody's address": _workers(address="127.0.0.1:1"),
    "no address": _workers(address="nonsense"),
    "another life": _workers(life="0" * 32),
    "no object": lambda t: t.update(kvxfer="text"),
    "nothing": lambda t: t.pop("kvxfer"),
    "another engine's params": lambda t: t.update(
        kvxfer=None, remote_block_ids=[[1]], remote_host="127.0.0.1", remote_port=1
    ),
}


# Without the transfer's name, or with nobody to tell.
_NOT_GIVEN_BACK = (
    *("an unknown transfer", "no workers", "nobody's address", "no address", "another life"),
    *("no object", "nothing", "another engine's params"),
)
_OF_BOTH_MODELS = ("an unknown transfer", "other blocks", "blocks out of range", "fewer tokens")


@pytest.mark.parametrize("spoil", _SPOILERS.values(), ids=_SPOILERS.keys())
def test_a_spoiled_reference_gives_the_right_tokens(
    talk: Conversation, spoil: Callable[[Transfer], None]
) -> None:
    """And prefill's blocks come back before their lease is over."""
    if _has_window(talk.pair) and spoil not in map(_SPOILERS.get, _OF_BOTH_MODELS):
        return  # what a reference says is read before there are blocks of any group
    transfers = talk.prefill("200")
    before, at_prefill = talk.pair.decode.metrics(), talk.pair.prefill.metrics()
    spoil(transfers["200"])
    assert talk.decode(transfers) == talk.expected("200")
    assert counted(talk.pair.decode, before)[TRANSFERRED_TOKENS] == 0
    if spoil not in map(_SPOILERS.get, _NOT_GIVEN_BACK):
        _is_given_back(talk.pair, at_prefill)


def _is_given_back(pair: Pair, since: Mapping[str, float]) -> None:
    begin = time.monotonic()
    assert pair.prefill.idle(10)
    print(f"prefill has nothing to keep after {time.monotonic() - begin:.3f} s")
    assert counted(pair.prefill, since)[_EXPIRED] == 0


def test_references_of_two_prompts_mixed_up(talk: Conversation) -> None:
    transfers = talk.prefill("200", "other")
    mixed = {"200": transfers["other"], "other": transfers["200"]}
    before = talk.pair.prefill.metrics()
    assert talk.decode(mixed) == talk.expected("200", "other")
    _is_given_back(talk.pair, before)


def test_a_prompt_that_differs_in_one_token_is_computed_at_once(talk: Conversation) -> None:
    prompt = [*talk.prompts["200"][:-1], 1]
    took = {}
    answers = {}
    for name in ("plain", "mismatched", "plain"):
        transfer = talk.prefill("200")["200"] if name == "mismatched" else None
        before, at_prefill = talk.pair.decode.metrics(), talk.pair.prefill.metrics()
        (answer,) = talk.pair.decode.generate(Request(prompt, 1, transfer))
        took[name], answers[name] = answer.seconds, answer.tokens
        assert counted(talk.pair.decode, before)[_RETRIES] == 0
        if transfer:
            # One attempt, and no other: what is left of the time is the computation.
            assert counted(talk.pair.decode, before)[_FAILED] == 1
            assert counted(talk.pair.decode, before)[_LOADS] == 0
            assert counted(talk.pair.decode, before)[TRANSFERRED_TOKENS] == 0
            _is_given_back(talk.pair, at_prefill)
        assert talk.pair.decode.forget()
    print(f"computed in {took['plain']:.3f} s, refused first in {took['mismatched']:.3f} s")
    assert answers["mismatched"] == answers["plain"]
    # Another engine's time-out is 2 s; how long a computation takes depends on who else computes.
    assert took["mismatched"] < took["plain"] + 1.0
    line = "this prompt is not the one that the prefill engine computed"
    assert line in talk.pair.decode.log_tail(50)


def test_what_vllm_refuses_before_it_is_admitted_is_given_back(talk: Conversation) -> None:
    transfers = [*talk.prefill("200").values(), *prefill_to_push(talk, "other").values()]
    before, at_decode = talk.pair.prefill.metrics(), talk.pair.decode.metrics()
    for transfer in transfers:
        talk.pair.decode.reject(transfer)
    _is_given_back(talk.pair, before)
    assert counted(talk.pair.decode, at_decode)[_FAILED] == 0


def test_a_proxy_sends_a_reference_back_to_the_engine_that_made_it(talk: Conversation) -> None:
    for made, name in ((talk.prefill, "200"), (functools.partial(prefill_to_push, talk), "other")):
        (transfer,) = made(name).values()
        before = talk.pair.prefill.metrics()
        transfer["kvxfer"]["mode"] = "release"
        (answer,) = talk.pair.prefill.generate(Request([0], 1, transfer))
        assert answer.reason == "length"
        _is_given_back(talk.pair, before)


def test_a_reference_that_was_used(talk: Conversation) -> None:
    transfers = talk.prefill("200")
    again = copy.deepcopy(transfers)
    assert talk.decode(transfers) == talk.expected("200")
    assert talk.pair.decode.forget()
    before = talk.pair.decode.metrics()
    assert talk.decode(again) == talk.expected("200")
    assert counted(talk.pair.decode, before)[_FAILED] == 1


def test_a_reference_whose_lease_is_over_and_whose_blocks_are_others(talk: Conversation) -> None:
    transfers = talk.prefill("200")
    assert talk.pair.prefill.idle(_LEASE_S + 10), "the lease does not end"
    assert counted(talk.pair.prefill)["vllm:kvxfer_expired_leases"] >= 1
    assert talk.pair.prefill.forget()
    talk.pair.prefill.generate(*(Request(talk.prompts[name], 1) for name in ("other", "517")))
    before = talk.pair.decode.metrics()
    assert talk.decode(transfers) == talk.expected("200")
    assert counted(talk.pair.decode, before)[_FAILED] == 1


def test_a_lease_is_kept_while_decode_waits(talk: Conversation) -> None:
    """Decode is full for longer than a lease lasts, and then reads what it was promised."""
    decode = talk.pair.decode
    busy = [decode.add(Request([3, 5, 7], 900)) for _ in range(16)]  # max_num_seqs
    transfers = talk.prefill("200")
    before = decode.metrics()
    decode.add(talk.request("200", transfers["200"]))
    assert not [each for each in decode.poll(_LEASE_S + 2) if each.name == "200"]
    decode.abort(*busy)
    answers = wait_for([decode], {"200"})
    assert answers["200"].tokens == talk.alone["200"]
    assert counted(decode, before)[TRANSFERRED_TOKENS] == _loaded(talk.pair, 200)


# --- requests that are given up ---


def test_aborts_while_decode_waits_loads_and_decodes(talk: Conversation) -> None:
    decode = talk.pair.decode
    decode.serve(False)
    for steps in range(6):
        transfers = talk.prefill("aborted")
        decode.add(talk.request("aborted", transfers["aborted"]))
        for _ in range(steps):
            decode.poll(0)
        decode.abort("aborted")
        assert decode.idle(10)
        assert talk.pair.prefill.idle(2), "decode has not given the blocks back"
    decode.serve(True)


def test_aborts_of_pushes(talk: Conversation) -> None:
    for who in ("decode", "prefill"):
        for wait_s in (0.0, 0.001, 0.01):
            prefill, decode = _push("517", talk)
            talk.pair.decode.add(decode)
            talk.pair.prefill.add(prefill)
            engine = talk.pair.decode if who == "decode" else talk.pair.prefill
            engine.poll(wait_s)
            engine.abort(decode.name if who == "decode" else prefill.name)
            left = {prefill.name} if who == "decode" else {decode.name}
            answers = wait_for(talk.pair.engines, left)
            if who == "prefill":
                assert answers[decode.name].tokens == talk.alone["517"]
            for each in talk.pair.engines:
                assert each.idle(10), each.name
                assert each.forget()

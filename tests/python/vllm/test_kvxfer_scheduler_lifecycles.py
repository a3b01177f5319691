"""Requests from their begin to their end in vLLM's own schedulers: prefilled for another engine, loaded from
one, in parts, with what is cached, with several answers, on several ranks. No engine is started."""

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
from paged_model import continued  # noqa: E402
from scheduled_pair import (  # noqa: E402
    TOKENS,
    MakePair,
    Pair,
    clock,  # noqa: F401
    make_pair,  # noqa: F401
    prompt_of,
)
from scheduling import MODES, Clock  # noqa: E402

# 55, 48: prefill leaves the last token to decode, for the windows below.
_LENGTHS = (1, 16, 48, 55, 100)
_WINDOWS = (0, 40, 33)


def _fetched(mode: str) -> list[str]:
    """What decode's workers are told of a request that all goes well with."""
    return ["fetches"] if mode == "pull" else ["offers"]


# --- from begin to end ---


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", _WINDOWS)
@pytest.mark.parametrize("tokens", _LENGTHS)
def test_decode_answers_as_one_engine(
    make_pair: MakePair, mode: str, window: int, tokens: int
) -> None:
    pair = make_pair(window=window)
    pair.begin("r", prompt_of(tokens), mode)
    pair.run()
    pair.check_answer("r")
    if tokens > 1 or not window:
        assert pair.decode.workers[0].orders_of("r") == _fetched(mode)
        assert pair.decode.model.computed == TOKENS  # of the prompt the last one
    pair.check_nothing_is_left()


@pytest.mark.parametrize("window", _WINDOWS)
def test_prefill_keeps_blocks_until_they_are_read(make_pair: MakePair, window: int) -> None:
    pair = make_pair(window=window)
    free = pair.prefill.free_blocks
    params = pair.prefilled("r", prompt_of(40))
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    answer = pair.prefill.answers["r"]
    assert (answer.reason, len(answer.tokens)) == ("length", 1)
    assert pair.prefill.status("r") == "FINISHED_LENGTH_CAPPED"
    for _ in range(5):
        pair.prefill.step()
    assert pair.prefill.free_blocks == free - 3 * (2 if window else 1)
    assert pair.prefill.workers[0].orders_of("r") == ["held"]
    pair.expire()
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_what_nobody_asks_for_ends_with_its_lease(
    make_pair: MakePair, clock: Clock, mode: str
) -> None:
    pair = make_pair()
    pair.prefilled("r", prompt_of(40), mode)
    for seconds in (0, 20):
        clock.ahead += seconds
        for _ in range(5):
            pair.prefill.step()
        assert not pair.prefill.is_whole
    clock.ahead += 20
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_what_waits_at_decode_keeps_its_lease(make_pair: MakePair, clock: Clock, mode: str) -> None:
    pair = make_pair(decode={"most_running": 1})
    params = pair.prefilled("r", prompt_of(40), mode)
    pair.decode.add("other", [5], None, 200)
    pair.decode.step()
    pair.ask_decode("r", prompt_of(40), params)
    for _ in range(100):
        clock.ahead += 2
        for engine in pair.engines:
            engine.step()
    assert pair.decode.status("r") == "WAITING"
    pair.run()
    pair.check_answer("r")
    assert pair.decode.workers[0].copied == 40
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", MODES)
def test_decode_computes_nothing_until_all_is_loaded(make_pair: MakePair, mode: str) -> None:
    pair = make_pair()
    pair.known()
    pair.decode.add("other", [5], None, 400)
    pair.network.stop()
    pair.begin("r", prompt_of(40), mode)
    pair.run_until_decode_is("WAITING_FOR_REMOTE_KVS", "r")
    for _ in range(10):
        pair.decode.step()
    assert pair.decode.status("r") == "WAITING_FOR_REMOTE_KVS"
    pair.decode.abort("other")
    computed = pair.decode.model.computed
    pair.network.go_on()
    pair.run()
    pair.check_answer("r")
    assert pair.decode.model.computed - computed <= TOKENS + 1  # and one of the other's
    pair.check_nothing_is_left()


def test_prefill_is_free_before_decode_has_answered(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.begin("r", prompt_of(40), "pull", tokens=100)
    pair.run(lambda: pair.prefill.is_whole)
    assert pair.decode.status("r") in ("WAITING_FOR_REMOTE_KVS", "WAITING", "RUNNING")
    pair.run()
    pair.check_answer("r")


def test_a_request_of_nobody_else_is_not_touched(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.prefill.add("r", prompt_of(40), None, 5)
    pair.check_nothing_is_left()
    assert pair.prefill.answers["r"].tokens == continued(prompt_of(40), 5)
    assert pair.prefill.answers["r"].params is None
    assert not pair.prefill.workers[0].orders


# --- in parts ---


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", _WINDOWS)
def test_prompts_of_many_chunks(make_pair: MakePair, mode: str, window: int) -> None:
    pair = make_pair(window=window, budget=24)
    for number in range(3):
        pair.begin(f"r{number}", prompt_of(100 + number, number), mode)
    pair.run()
    for number in range(3):
        pair.check_answer(f"r{number}")
    pair.check_nothing_is_left()


def test_a_push_goes_on_while_the_prompt_is_computed(make_pair: MakePair) -> None:
    pair = make_pair(budget=16)
    pair.begin("r", prompt_of(100), "beside")
    pair.run()
    orders = pair.prefill.workers[0].orders_of("r")
    assert orders == ["writes"] * len(orders)
    assert len(orders) > 2
    pair.check_answer("r")


# --- what decode has already ---


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("tokens", "common", "left"),
    [(64, 64, 16), (65, 65, 1), (64, 32, 32), (40, 20, 24), (40, 10, 40), (100, 100, 4)],
)
def test_only_what_is_not_cached_is_loaded(
    make_pair: MakePair, mode: str, tokens: int, common: int, left: int
) -> None:
    pair = make_pair()
    prompt = prompt_of(tokens)
    pair.decode.add("earlier", [*prompt[:common], 7, 7, 7], None)
    pair.known()
    pair.run()
    pair.begin("r", prompt, mode)
    pair.run()
    pair.check_answer("r")
    assert pair.decode.workers[0].copied == left
    pair.check_nothing_is_left()


@pytest.mark.parametrize("window", _WINDOWS)
@pytest.mark.parametrize("mode", MODES)
def test_what_was_loaded_is_cached(make_pair: MakePair, mode: str, window: int) -> None:
    pair = make_pair(window=window)
    pair.begin("r", prompt_of(100), mode)
    pair.run()
    computed = pair.decode.model.computed
    for tokens in (100, 97, 50):
        pair.decode.add(f"{tokens}", prompt_of(tokens), None, TOKENS)
        pair.run()
        assert pair.decode.answers[f"{tokens}"].tokens == continued(prompt_of(tokens), TOKENS)
    if not window:
        assert pair.decode.model.computed - computed == 4 + 1 + 2 + 3 * (TOKENS - 1)
    pair.check_nothing_is_left()


def test_where_all_is_cached_prefill_gets_its_blocks_back(make_pair: MakePair) -> None:
    """With a window decode computes the last token before it asks, so that nothing is left to load."""
    pair = make_pair(window=40)
    pair.decode.add("earlier", prompt_of(65), None)
    pair.run()
    pair.begin("r", prompt_of(65), "pull")
    pair.run(lambda: pair.prefill.is_whole)
    pair.run()
    pair.check_answer("r")
    assert pair.decode.workers[0].orders_of("r") == []


def test_a_prompt_that_goes_on_after_what_was_prefilled(make_pair: MakePair) -> None:
    pair = make_pair()
    params = pair.prefilled("r", prompt_of(40))
    pair.ask_decode("r", prompt_of(100), params)
    pair.run()
    pair.check_answer("r")
    assert pair.decode.workers[0].copied == 40
    pair.check_nothing_is_left()


# --- several answers ---


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("window", _WINDOWS)
@pytest.mark.parametrize("tokens", [33, 64, 100])
def test_several_answers_are_loaded_once(
    make_pair: MakePair, mode: str, window: int, tokens: int
) -> None:
    pair = make_pair(window=window)
    params = pair.prefilled("r", prompt_of(tokens), mode)
    names = ["0_r", "1_r", "2_r"]
    for name in names:
        pair.ask_decode(name, prompt_of(tokens), params)
    pair.run()
    for name in names:
        pair.check_answer(name)
    assert [
        name for kind, name in pair.decode.workers[0].orders if kind in ("fetches", "offers")
    ] == ["0_r"]
    pair.check_nothing_is_left()


def _followed(make_pair: MakePair, **shape: Any) -> Pair:
    """A pair whose decode loads "0_r", while "1_r" has the same reference."""
    pair = make_pair(**shape)
    params = pair.prefilled("r", prompt_of(64))
    pair.network.stop()
    for name in ("0_r", "1_r"):
        pair.ask_decode(name, prompt_of(64), params)
    pair.run_until_decode_is("WAITING_FOR_REMOTE_KVS", "0_r")
    return pair


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_an_answer_that_comes_late_finds_what_was_loaded(make_pair: MakePair, mode: str) -> None:
    """The lease is used up. Of a prompt of whole blocks the last one is computed."""
    pair = make_pair(policy="fail")
    params = pair.prefilled("r", prompt_of(64), mode)
    for name in ("0_r", "1_r"):
        pair.ask_decode(name, prompt_of(64), params)
        pair.run()
        pair.check_answer(name)
    assert pair.decode.workers[0].orders_of("1_r") == []
    pair.check_nothing_is_left()


def test_one_that_follows_waits_without_blocks(make_pair: MakePair) -> None:
    pair = _followed(make_pair)
    free = pair.decode.free_blocks
    for _ in range(5):
        pair.decode.step()
    assert (pair.decode.status("1_r"), pair.decode.free_blocks) == ("WAITING", free)
    pair.decode.abort("1_r")
    pair.network.go_on()
    pair.run()
    pair.check_answer("0_r")
    pair.check_nothing_is_left()


@pytest.mark.parametrize("loading", [True, False])
def test_one_that_follows_loads_where_the_first_is_aborted(
    make_pair: MakePair, loading: bool
) -> None:
    pair = _followed(make_pair) if loading else make_pair()
    if not loading:
        params = pair.prefilled("r", prompt_of(64))
        for name in ("0_r", "1_r"):
            pair.ask_decode(name, prompt_of(64), params)
    pair.decode.abort("0_r")
    pair.network.go_on()
    pair.run()
    pair.check_answer("1_r")
    pair.check_nothing_is_left()
    assert pair.decode.model.computed == TOKENS


# --- several ranks ---


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", _WINDOWS)
def test_all_ranks_have_to_be_done(make_pair: MakePair, mode: str, window: int) -> None:
    pair = make_pair(window=window, ranks=3)
    pair.known()
    slow = pair.decode.workers[1]
    slow.is_stopped = True
    pair.begin("r", prompt_of(57), mode)
    fast = pair.decode.workers[0]
    pair.run(lambda: fast.copied > 0 and fast.is_idle())
    for _ in range(5):
        pair.decode.step()
    assert pair.decode.status("r") == "WAITING_FOR_REMOTE_KVS"
    slow.is_stopped = False
    pair.run()
    pair.check_answer("r")
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", MODES)
def test_one_rank_that_fails_fails_all(make_pair: MakePair, mode: str) -> None:
    pair = make_pair(ranks=3)
    pair.known()
    pair.decode.workers[1].breaks = True
    pair.begin("r", prompt_of(57), mode)
    pair.run()
    pair.check_answer("r")
    assert pair.decode.model.computed == 57 + TOKENS - 1
    pair.expire()
    pair.check_nothing_is_left()

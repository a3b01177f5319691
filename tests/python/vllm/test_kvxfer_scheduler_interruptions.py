"""Requests that are preempted or aborted, wherever they are, in vLLM's own schedulers; and a prefix cache
that is reset while blocks are lent. No engine is started."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
from paged_model import continued  # noqa: E402
from scheduled_engine import Engine  # noqa: E402
from scheduled_pair import (  # noqa: E402
    TOKENS,
    MakePair,
    Pair,
    clock,  # noqa: F401
    make_pair,  # noqa: F401
    prompt_of,
)
from scheduling import MODES, Clock, beside  # noqa: E402

_PROMPT = prompt_of(100)
_WINDOWS = (0, 40, 33)


def _computes(engine: Engine, name: str) -> Callable[[], bool]:
    """Some of its prompt."""
    requests = engine.scheduler.requests
    return lambda: name in requests and 0 < requests[name].num_computed_tokens < len(_PROMPT) - 1


# --- preempted ---


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", _WINDOWS)
def test_prefill_is_preempted(make_pair: MakePair, mode: str, window: int) -> None:
    pair = make_pair(window=window, budget=24)
    pair.known()
    pair.ask_prefill("other", prompt_of(60, 1), "pull")
    if mode == "beside":
        pair.begin("r", _PROMPT, mode)
    else:
        pair.ask_prefill("r", _PROMPT, mode)
    pair.run(_computes(pair.prefill, "r"))
    for _ in range(3):
        pair.prefill.preempt_all()
        pair.prefill.step()
    if mode != "beside":
        pair.run(lambda: "r" in pair.prefill.answers)
        params = pair.prefill.answers["r"].params
        assert params is not None
        pair.ask_decode("r", _PROMPT, params)
    pair.run_until_answered("r")
    pair.check_answer("r")
    assert len(pair.prefill.answers["r"].tokens) == 1
    assert pair.prefill.preemptions > 0
    pair.expire()
    pair.check_nothing_is_left()


@pytest.mark.parametrize("on_its_way", [True, False])
@pytest.mark.parametrize("window", _WINDOWS)
def test_what_is_pushed_is_preempted_between_its_pieces(
    make_pair: MakePair, window: int, on_its_way: bool
) -> None:
    pair = make_pair(window=window, budget=16)
    pair.known()
    worker = pair.prefill.workers[0]
    pair.begin("r", _PROMPT, "beside")
    if on_its_way:
        worker.is_stopped = True
    pair.run(lambda: worker.orders_of("r").count("writes") == 2)
    pair.prefill.preempt_all()
    pair.prefill.step()
    worker.is_stopped = False
    pair.run()
    pair.check_answer("r")
    assert pair.prefill.preemptions > 0
    assert pair.decode.model.computed <= TOKENS + 1
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", MODES)
def test_decode_that_is_preempted_loads_once(make_pair: MakePair, mode: str) -> None:
    pair = make_pair(decode={"budget": 32})
    pair.begin("r", _PROMPT, mode, tokens=20)
    answers = pair.decode.answers
    pair.run(lambda: "r" in answers and len(answers["r"].tokens) > 3)
    pair.decode.preempt_all()
    pair.run()
    pair.check_answer("r")
    assert len(pair.decode.workers[0].orders_of("r")) == 1
    assert pair.decode.preemptions == 1
    pair.check_nothing_is_left()


def test_prefill_gives_way_to_what_came_before(make_pair: MakePair) -> None:
    """Where blocks run out, the request that came last is preempted."""
    pair = make_pair(prefill={"blocks": 11, "budget": 16})
    pair.prefill.add("local", prompt_of(60, 1), None, 60)
    pair.run(lambda: "local" in pair.prefill.answers)
    pair.ask_prefill("r", prompt_of(95), "pull")
    pair.run(lambda: "r" in pair.prefill.answers)
    params = pair.prefill.answers["r"].params
    assert params is not None
    pair.ask_decode("r", prompt_of(95), params)
    pair.run()
    pair.check_answer("r")
    assert pair.prefill.answers["local"].tokens == continued(prompt_of(60, 1), 60)
    assert pair.prefill.preemptions > 0
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", MODES)
def test_decode_short_of_blocks(make_pair: MakePair, mode: str) -> None:
    """One request fits beside another, and both grow until one has to go."""
    pair = make_pair(decode={"blocks": 10})
    for name in ("r0", "r1"):
        pair.begin(name, prompt_of(60, int(name[1:])), mode, tokens=50)
    pair.run()
    assert pair.decode.preemptions > 0
    for name in ("r0", "r1"):
        pair.check_answer(name)
    pair.check_nothing_is_left()


# --- aborted at decode ---


def _begun(make_pair: MakePair, mode: str, **shape: Any) -> Pair:
    """With the request at decode, which has not looked at it, and nothing that moves between them."""
    pair = make_pair(**shape)
    pair.known()
    pair.network.stop()
    pair.begin("r", _PROMPT, mode)
    return pair


@pytest.mark.parametrize("mode", MODES)
def test_decode_aborts_what_waits(make_pair: MakePair, mode: str) -> None:
    pair = _begun(make_pair, mode)
    assert pair.decode.status("r") == "WAITING"
    pair.decode.abort("r")
    assert pair.decode.is_whole
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", _WINDOWS)
def test_decode_aborts_what_is_being_loaded(make_pair: MakePair, mode: str, window: int) -> None:
    """Its blocks are not free before nothing can come into them."""
    pair = _begun(make_pair, mode, window=window)
    pair.run_until_decode_is("WAITING_FOR_REMOTE_KVS", "r")
    pair.decode.abort("r")
    for _ in range(5):
        pair.decode.step()
    assert not pair.decode.is_whole
    assert pair.decode.status("r") == "FINISHED_ABORTED"
    pair.network.go_on()
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", ["push", "beside"])
def test_decode_aborts_what_is_being_written(make_pair: MakePair, mode: str) -> None:
    pair = make_pair(budget=32)
    pair.known()
    worker = pair.prefill.workers[0]
    worker.is_stopped = True
    pair.begin("r", _PROMPT, mode)
    pair.run(lambda: "writes" in worker.orders_of("r"))
    pair.decode.abort("r")
    for _ in range(10):
        pair.decode.step()
    assert "r" not in pair.decode.scheduler.requests
    assert not pair.decode.is_whole
    assert not pair.decode.is_idle()
    worker.is_stopped = False
    pair.check_nothing_is_left()


def _run_until_all_is_copied(pair: Pair) -> None:
    pair.run(lambda: pair.decode.workers[0].copied >= len(_PROMPT))


@pytest.mark.parametrize("mode", MODES)
def test_decode_aborts_what_is_loaded(make_pair: MakePair, mode: str) -> None:
    """Before and after it is scheduled."""
    for steps in range(6):
        pair = _begun(make_pair, mode)
        pair.run_until_decode_is("WAITING_FOR_REMOTE_KVS", "r")
        pair.network.go_on()
        _run_until_all_is_copied(pair)
        for _ in range(steps):
            pair.decode.step()
        pair.decode.abort("r")
        pair.check_nothing_is_left()


# --- aborted at prefill ---


@pytest.mark.parametrize("mode", MODES)
def test_prefill_aborts_what_waits(make_pair: MakePair, mode: str) -> None:
    pair = make_pair()
    pair.ask_prefill("r", _PROMPT, mode)
    pair.prefill.abort("r")
    pair.check_nothing_is_left()
    assert pair.prefill.answers["r"].params is None


@pytest.mark.parametrize("mode", MODES)
def test_prefill_aborts_what_it_computes(make_pair: MakePair, mode: str) -> None:
    pair = make_pair(budget=24)
    pair.ask_prefill("r", _PROMPT, mode)
    pair.run(_computes(pair.prefill, "r"))
    pair.prefill.abort("r")
    pair.check_nothing_is_left()
    assert pair.prefill.answers["r"].params is None


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("on_its_way", [True, False])
def test_prefill_aborts_what_it_pushes(make_pair: MakePair, on_its_way: bool, policy: str) -> None:
    pair = make_pair(budget=16, policy=policy)
    pair.known()
    worker = pair.prefill.workers[0]
    worker.is_stopped = on_its_way
    pair.begin("r", _PROMPT, "beside")
    pair.run(lambda: worker.orders_of("r").count("writes") == 2)
    pair.prefill.abort("r")
    pair.prefill.step()
    worker.is_stopped = False
    pair.run()
    if policy == "recompute":
        pair.check_answer("r")
    assert pair.decode.answers["r"].reason == ("length" if policy == "recompute" else "error")
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_prefill_aborts_what_it_has_answered(make_pair: MakePair, mode: str) -> None:
    """Its client may be gone; decode has the reference."""
    pair = make_pair()
    params = pair.prefilled("r", _PROMPT, mode)
    pair.prefill.abort("r")
    assert not pair.prefill.is_whole
    pair.ask_decode("r", _PROMPT, params)
    pair.run()
    pair.check_answer("r")
    assert pair.decode.model.computed == TOKENS
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", MODES)
def test_both_abort_at_once(make_pair: MakePair, mode: str) -> None:
    for steps in range(8):
        pair = make_pair(budget=24)
        pair.begin("r", _PROMPT, mode)
        for _ in range(steps):
            for engine in pair.engines:
                engine.step()
        for engine in pair.engines:
            engine.abort("r")
        pair.check_nothing_is_left()


# --- the prefix cache is reset ---


@pytest.mark.parametrize("policy", ["recompute", "fail"])
@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("tokens", [1, 3])
def test_a_reset_ends_leases_that_nobody_has_read(
    make_pair: MakePair, mode: str, policy: str, steps: int, tokens: int
) -> None:
    """Also what is granted only in the step after it."""
    pair = make_pair(policy=policy)
    params = pair.prefilled("r", _PROMPT, mode, tokens=tokens)
    for _ in range(steps):
        pair.prefill.step()
    if pair.prefill.scheduler.requests["r"].num_in_flight_tokens:
        pair.prefill.step()  # vLLM refuses while a step may write into its blocks
    scheduler = pair.prefill.scheduler
    assert scheduler.reset_prefix_cache(reset_connector=True)
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == (
        scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1
    )
    pair.ask_decode("r", _PROMPT, params)
    pair.run()
    if policy == "recompute":
        pair.check_answer("r")
    else:
        assert pair.decode.answers["r"].reason == "error"
    pair.check_nothing_is_left()


def test_a_reset_that_vllm_refuses_changes_nothing(make_pair: MakePair) -> None:
    pair = make_pair(policy="fail", budget=24)
    params = pair.prefilled("r", _PROMPT)
    pair.ask_prefill("other", prompt_of(60, 1), "pull")
    pair.prefill.step()
    assert not pair.prefill.scheduler.reset_prefix_cache()
    pair.ask_decode("r", _PROMPT, params)
    pair.run_until_answered("r")
    pair.check_answer("r")
    pair.expire()
    pair.run()
    pair.check_nothing_is_left()


def test_a_reset_after_decode_has_withdrawn_leaves_nothing(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.prefill.workers[0].is_stopped = True
    pair.begin("r", _PROMPT, "push")
    pair.run_until_decode_is("WAITING_FOR_REMOTE_KVS", "r")
    pair.decode.abort("r")
    for _ in range(4):
        pair.decode.step()
    pair.prefill.step()
    assert pair.prefill.scheduler.reset_prefix_cache()
    pair.prefill.workers[0].is_stopped = False
    pair.run()
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", MODES)
def test_what_is_loaded_while_decode_is_reset_is_not_taken(make_pair: MakePair, mode: str) -> None:
    """It may be of other weights."""
    pair = make_pair()
    pair.known()
    pair.decode.workers[0].is_stopped = True
    pair.begin("r", _PROMPT, mode)
    pair.run_until_decode_is("WAITING_FOR_REMOTE_KVS", "r")
    assert not pair.decode.scheduler.reset_prefix_cache()
    pair.decode.workers[0].is_stopped = False
    computed = pair.decode.model.computed
    pair.run_until_answered("r")
    pair.check_answer("r")
    assert pair.decode.model.computed - computed >= len(_PROMPT)
    pair.expire()
    pair.run()
    pair.check_nothing_is_left()


# --- engines that are full ---


def test_engines_that_wait_for_each_other_do_not_do_so_for_ever(
    make_pair: MakePair, clock: Clock
) -> None:
    """Decode has its blocks offered for one request, prefill has its full of another, and decode renews
    both leases."""
    pair = make_pair(blocks=11)
    known = pair.known()
    params = pair.prefilled("first", _PROMPT)
    pair.ask_decode("second", prompt_of(100, 1), beside(known, "second"))
    pair.run_until_decode_is("WAITING_FOR_REMOTE_KVS", "second")
    pair.ask_prefill("second", prompt_of(100, 1), "beside")
    pair.ask_decode("first", _PROMPT, params)
    for _ in range(600):
        clock.ahead += 1.0
        for engine in pair.engines:
            engine.step()
    assert {"first", "second"} <= pair.decode.answers.keys()

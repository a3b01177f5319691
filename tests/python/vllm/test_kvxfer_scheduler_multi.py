"""KvxferConnector beside another connector, in vLLM's MultiConnector and own schedulers: one of them loads a
request, and blocks are free when neither needs them. No engine is started."""

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
from scheduled_pair import TOKENS, MakePair, Pair, make_pair, prompt_of  # noqa: E402, F401
from scheduling import MODES  # noqa: E402

_PROMPT = prompt_of(57)


def _beside_store(order: str) -> dict[str, Any]:
    """Of Shape.connector."""
    store = {
        "kv_connector": "Store",
        "kv_connector_module_path": "store_connector",
        "kv_role": "kv_both",
    }
    ours = {
        "kv_connector": "KvxferConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"model_id": "paged"},
    }
    connectors = [ours, store] if order == "first" else [store, ours]
    return {
        "kv_connector": "MultiConnector",
        "kv_connector_module_path": None,
        "kv_connector_extra_config": {"connectors": connectors},
    }


def _pair(make_pair: MakePair, order: str, **both: Any) -> Pair:
    return make_pair(connector=_beside_store(order), **both)


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", [0, 40])
def test_a_request_comes_over_beside_another_connector(
    make_pair: MakePair, mode: str, window: int, order: str
) -> None:
    pair = _pair(make_pair, order, window=window)
    pair.begin("r", _PROMPT, mode)
    pair.run()
    pair.check_answer("r")
    assert pair.decode.model.computed == TOKENS
    pair.check_nothing_is_left()


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_load_that_fails_beside_another_connector(
    make_pair: MakePair, policy: str, order: str
) -> None:
    pair = _pair(make_pair, order, policy=policy)
    pair.network.breaks = lambda request: True
    pair.begin("r", _PROMPT, "pull")
    pair.run()
    if policy == "recompute":
        pair.check_answer("r")
    assert pair.decode.answers["r"].reason == ("error" if policy == "fail" else "length")
    pair.check_nothing_is_left()


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_what_the_other_connector_loads_is_given_back(make_pair: MakePair, mode: str) -> None:
    pair = _pair(make_pair, "last")
    params = pair.prefilled("r", _PROMPT, mode)
    pair.decode.model.from_a_store["r"] = 32
    pair.ask_decode("r", _PROMPT, params | {"store": 32})
    pair.run()
    pair.check_answer("r")
    assert pair.decode.model.computed == len(_PROMPT) - 32 + TOKENS - 1
    assert pair.decode.workers[0].orders_of("r") == []
    pair.check_nothing_is_left()


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("mode", MODES)
def test_aborts_beside_another_connector(make_pair: MakePair, mode: str, order: str) -> None:
    for steps in range(8):
        pair = _pair(make_pair, order, budget=24)
        pair.begin("r", _PROMPT, mode)
        for _ in range(steps):
            for engine in pair.engines:
                engine.step()
        for engine in pair.engines:
            engine.abort("r")
        pair.check_nothing_is_left()


@pytest.mark.parametrize("order", ["first", "last"])
def test_several_answers_beside_another_connector(make_pair: MakePair, order: str) -> None:
    pair = _pair(make_pair, order)
    params = pair.prefilled("r", _PROMPT)
    for number in range(3):
        pair.ask_decode(f"{number}_r", _PROMPT, params)
    pair.run()
    for number in range(3):
        pair.check_answer(f"{number}_r")
    pair.check_nothing_is_left()

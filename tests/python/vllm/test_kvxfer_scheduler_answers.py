"""Several answers to one prompt, and prompts that begin with an earlier answer, in vLLM's own schedulers. No
engine is started."""

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
from kvxfer.vllm.reference import KEY  # noqa: E402
from scheduled_pair import TOKENS, MakePair, Pair, make_pair, prompt_of  # noqa: E402, F401

_PROMPT = prompt_of(100)
_TURNS = {"bidirectional": True}
_BOTH = {"do_remote_decode": True, "do_remote_prefill": True}


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_answers_of_prefill_have_one_reference_and_one_lease(
    make_pair: MakePair, mode: str
) -> None:
    pair = make_pair()
    names = [f"{number}_r" for number in range(3)]
    for name in names:
        pair.ask_prefill(name, _PROMPT, mode)
    pair.run(lambda: pair.prefill.answers.keys() >= set(names))
    given = [pair.prefill.answers[name].params for name in names]
    transfers = {each[KEY]["transfer"] for each in given if each is not None}
    assert len(transfers) == 1
    pair.prefill.step()  # its workers hear that the other leases are dropped
    worker = pair.prefill.workers[0]
    assert len(worker.leases) + len(worker.pushes) == 1
    params = next(each for each in given if each is not None)
    for name in names:
        pair.ask_decode(name, _PROMPT, params)
    pair.run_until_answered(*names)
    for name in names:
        pair.check_answer(name)
    pair.check_nothing_is_left()


def _turn(pair: Pair, name: str, prompt: list[int], earlier: dict[str, Any] | None) -> list[int]:
    """Decode's answer."""
    wish = {"do_remote_decode": True} if earlier is None else _BOTH | {KEY: earlier[KEY]}
    pair.prefill.add(name, prompt, wish)
    pair.run(lambda: name in pair.prefill.answers)
    params = pair.prefill.answers[name].params
    assert params is not None
    pair.ask_decode(name, prompt, params)
    pair.run_until_answered(name)
    pair.check_answer(name)
    return list(pair.decode.answers[name].tokens)


@pytest.mark.parametrize("window", [0, 40])
def test_a_next_turn_begins_with_what_decode_has_kept(make_pair: MakePair, window: int) -> None:
    pair = make_pair(window=window, extra=_TURNS, role="kv_both")
    prompt = list(_PROMPT)
    answer = _turn(pair, "first", prompt, None)
    for turn in range(3):
        kept = pair.decode.answers["first" if turn == 0 else f"turn {turn - 1}"].params
        assert kept is not None
        prompt = prompt + answer + prompt_of(30, 7 + turn)
        computed = pair.prefill.model.computed
        answer = _turn(pair, f"turn {turn}", prompt, kept)
        # The last token of the answer before was never computed, nor were those that are new.
        assert pair.prefill.model.computed - computed <= 31 + TOKENS
    pair.expire()
    pair.run()
    pair.check_nothing_is_left()


def test_a_turn_that_begins_otherwise_is_computed(make_pair: MakePair) -> None:
    pair = make_pair(extra=_TURNS, role="kv_both")
    answer = _turn(pair, "first", list(_PROMPT), None)
    kept = pair.decode.answers["first"].params
    other = list(_PROMPT) + answer[:-2] + prompt_of(30, 9)
    _turn(pair, "other", other, kept)
    pair.expire()
    pair.run()
    pair.check_nothing_is_left()

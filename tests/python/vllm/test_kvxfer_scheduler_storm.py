"""Many requests through vLLM's own schedulers, whatever happens to them, from seeds: answers are those of
one engine, and at the end nothing is left. No engine is started."""

import random
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
from scheduled_pair import MakePair, Pair, make_pair, prompt_of  # noqa: E402, F401
from scheduling import MODES, altered, beside  # noqa: E402

_REQUESTS = 40
_PATIENCE = 300  # steps of clients
_PROMPTS = 5
_LENGTHS = (1, 15, 16, 17, 31, 33, 47, 48, 64, 79, 100)


class _Storm:
    def __init__(self, pair: Pair, seed: int, policy: str) -> None:
        self._pair = pair
        self._chance = random.Random(seed)
        self._policy = policy
        self._prompts: dict[str, list[int]] = {}
        self._of_prefill: set[str] = set()  # that were not handed on yet
        self._asked: set[str] = set()  # of decode
        self._waited = 0
        self._known = pair.known()

    def run(self) -> None:
        chance, network = self._chance, self._pair.network
        network.shake(chance, 0.4)
        broken = {f"r{number}" for number in range(_REQUESTS) if chance.random() < 0.1}
        network.breaks = lambda request: request.split("/")[0] in broken
        for number in range(_REQUESTS):
            self._ask(f"r{number}")
            for _ in range(chance.randrange(6)):
                self._something_happens()
        network.go_on()
        self._pair.run(self._all_is_handed_on)
        self._pair.run(self._nothing_is_computed)
        self._pair.expire()
        self._pair.run()

    def _nothing_is_computed(self) -> bool:
        return not any(engine.scheduler.has_unfinished_requests() for engine in self._pair.engines)

    def check(self) -> None:
        for name in self._asked:
            answer = self._pair.decode.answers[name]
            assert answer.reason in ("length", "abort", "error")
            if answer.reason == "length":
                self._pair.check_answer(name)
            assert self._policy == "fail" or answer.reason != "error"
        self._pair.check_nothing_is_left()

    def _ask(self, name: str) -> None:
        chance = self._chance
        prompt = prompt_of(chance.choice(_LENGTHS), chance.randrange(_PROMPTS))
        mode = chance.choice(MODES)
        self._prompts[name] = prompt
        if mode != "beside":
            self._pair.ask_prefill(name, prompt, mode)
            self._of_prefill.add(name)
        elif chance.random() < 0.5:
            self._pair.ask_prefill(name, prompt, mode)
            self._ask_decode(name, beside(self._known, name))
        else:
            self._ask_decode(name, beside(self._known, name))
            self._pair.ask_prefill(name, prompt, mode)

    def _ask_decode(self, name: str, params: dict[str, Any]) -> None:
        self._asked.add(name)
        tokens = self._chance.randrange(1, 20)
        self._pair.ask_decode(name, self._prompts[name], params, tokens)

    def _something_happens(self) -> None:
        chance, pair = self._chance, self._pair
        if chance.random() < 0.03:
            pair.prefill.abort(chance.choice(list(self._prompts)))
        if chance.random() < 0.05 and self._asked:
            pair.decode.abort(chance.choice(sorted(self._asked)))
        if chance.random() < 0.02:
            chance.choice(pair.engines).preempt_all()
        for name in sorted(self._of_prefill):
            if chance.random() < 0.7:
                self._hand_on(name)
        chance.choice(pair.engines).step()

    def _hand_on(self, name: str) -> None:
        """What a proxy makes of prefill's answer."""
        answer = self._pair.prefill.answers.get(name)
        if answer is None or not answer.reason:
            return
        self._of_prefill.remove(name)
        if answer.params is None:
            return
        what = self._chance.random()
        if what < 0.1:  # the client is gone
            self._release(name, answer.params)
        elif what < 0.2:
            self._prompts[name][-1] += 1
            self._ask_decode(name, answer.params)
        elif what < 0.4:  # several answers
            for number in range(3):
                self._prompts[f"{name}/{number}"] = self._prompts[name]
                self._ask_decode(f"{name}/{number}", answer.params)
        else:
            self._ask_decode(name, answer.params)

    def _release(self, name: str, params: dict[str, Any]) -> None:
        self._pair.ask_decode(f"{name}/gone", [0], altered(params, mode="release"), 1)

    def _all_is_handed_on(self) -> bool:
        for name in sorted(self._of_prefill):
            self._hand_on(name)
        self._waited += 1
        if self._waited == _PATIENCE:
            # Each engine may be full of what waits for the other.
            self._pair.decode.abort(*self._asked)
        return not self._of_prefill


@pytest.mark.parametrize("policy", ["recompute", "fail"])
@pytest.mark.parametrize("window", [0, 40, 33])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_left_of_many_requests(
    make_pair: MakePair, seed: int, window: int, policy: str
) -> None:
    roles = ("kv_both", "kv_both") if seed % 2 else ("kv_producer", "kv_consumer")
    prefill, decode = ({"role": role} for role in roles)
    shape = {"window": window, "policy": policy, "blocks": 40, "budget": 64, "most_running": 12}
    pair = make_pair(prefill, decode, **shape)
    storm = _Storm(pair, seed, policy)
    storm.run()
    storm.check()

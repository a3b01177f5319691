"""A prefill and a decode engine of scheduled_engine, and what a proxy does between them."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fake_workers import Network
from paged_model import continued
from scheduled_engine import SCHEDULERS, Engine, Shape, run
from scheduling import Clock, beside, wish

Params = dict[str, Any]
TOKENS = 4
"""That decode answers."""


class Pair:
    def __init__(self, kind: Any, prefill: Shape, decode: Shape) -> None:
        self.network = Network()
        self.prefill = Engine(kind, "prefill", self.network, prefill)
        self.decode = Engine(kind, "decode", self.network, decode)
        self.engines = (self.prefill, self.decode)
        self._prompts: dict[str, list[int]] = {}
        self._tokens: dict[str, int] = {}
        self._known: Params = {}

    # --- what a proxy does ---

    def ask_prefill(self, name: str, prompt: Sequence[int], mode: str, **more: Any) -> None:
        self.prefill.add(name, prompt, wish(mode, name), **more)

    def ask_decode(
        self, name: str, prompt: Sequence[int], params: Params, tokens: int = TOKENS, **more: Any
    ) -> None:
        self._prompts[name], self._tokens[name] = list(prompt), tokens
        self.decode.add(name, prompt, copy.deepcopy(params), tokens, **more)

    def prefilled(
        self, name: str, prompt: Sequence[int], mode: str = "pull", **more: Any
    ) -> Params:
        """The params that prefill answers with."""
        self.ask_prefill(name, prompt, mode, **more)
        answers = self.prefill.answers
        self.run(lambda: name in answers and bool(answers[name].reason))
        params = answers[name].params
        assert params is not None
        return params

    def begin(self, name: str, prompt: Sequence[int], mode: str, **more: Any) -> None:
        """Until decode has been asked."""
        if mode == "beside":
            known = self.known()
            self.ask_prefill(name, prompt, mode)
            self.ask_decode(name, prompt, beside(known, name), **more)
        else:
            self.ask_decode(name, prompt, self.prefilled(name, prompt, mode), **more)

    def known(self) -> Params:
        """An earlier answer of prefill."""
        if not self._known:
            self._known = self.prefilled("known", [1, 2, 3])
            self.expire()
        return self._known

    def expire(self) -> None:
        """What was computed for others and nobody has read."""
        for engine in self.engines:
            for _ in range(3):  # until its workers have heard of all of it
                engine.step()
            for worker in engine.workers:
                worker.expire()

    def run(self, until: Callable[[], Any] | None = None) -> None:
        run(self.engines, until)

    def run_until_decode_is(self, status: str, name: str) -> None:
        self.run(lambda: self.decode.status(name) == status)

    def run_until_answered(self, *names: str) -> None:
        answers = self.decode.answers
        self.run(lambda: all(name in answers and answers[name].reason for name in names))

    # --- what holds ---

    def check_answer(self, name: str) -> None:
        """Is that of one engine."""
        answer = self.decode.answers[name]
        assert answer.reason == "length"
        assert answer.tokens == continued(self._prompts[name], self._tokens[name])

    def check_nothing_is_left(self) -> None:
        self.run()
        for engine in self.engines:
            engine.check_nothing_is_left()


MakePair = Callable[..., Pair]


@pytest.fixture(params=SCHEDULERS, ids=lambda kind: kind.__name__)
def make_pair(request: pytest.FixtureRequest) -> MakePair:
    """Of options of Shape, for both engines; ``prefill`` and ``decode``: for one."""

    def make(
        prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, **both: Any
    ) -> Pair:
        return Pair(
            request.param, Shape(**(both | (prefill or {}))), Shape(**(both | (decode or {})))
        )

    return make


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Real time, but that it can be set on."""
    clock = Clock()
    for module in Clock.modules():
        monkeypatch.setattr(module, "time", clock)
    return clock


def prompt_of(tokens: int, seed: int = 0) -> list[int]:
    """Those of one seed begin with the same."""
    return [(seed * 997 + 31 * number) % 4001 for number in range(tokens)]

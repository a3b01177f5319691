"""What fake_workers takes for granted of workers, and they do not do: on agents of their own. No engine is
started."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
from kvxfer.vllm.peers import Peers  # noqa: E402
from kvxfer.vllm.step import Expected, GivenUp, Step  # noqa: E402
from worker_pair import PROMPT, Engine, engines, meet, offer, until  # noqa: E402, F401

_LIMIT_S = 2.0


def _has_heard(prefill: Engine) -> bool:
    return any("t" in heard.withdrawn for heard in prefill.heard)


def _abort_at_once(prefill: Engine, decode: Engine) -> None:
    prefill.step(Step(expected=[Expected("t", PROMPT)]))
    step = offer(prefill, decode, "t")
    step.given_up = [GivenUp(each.request) for each in step.offers]
    decode.step(step)


def test_prefill_hears_of_an_abort_though_it_is_only_being_met(
    engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = engines
    with monkeypatch.context() as patch:
        patch.setattr(Peers, "meet", lambda *_: None)
        _abort_at_once(prefill, decode)
    until(lambda: _has_heard(prefill), prefill, decode, limit=_LIMIT_S)


def test_prefill_hears_of_an_abort(engines: tuple[Engine, Engine]) -> None:
    prefill, decode = engines
    meet(prefill, decode)
    _abort_at_once(prefill, decode)
    until(lambda: _has_heard(prefill), prefill, decode)

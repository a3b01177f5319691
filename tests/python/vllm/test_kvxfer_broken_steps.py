"""Prefill writes what it computes, and a step does not come to its end: what was not computed is not sent.
Two workers of engines as vLLM drives them, in this process; no model."""

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
from kvxfer.vllm.step import Expected, Step, Write  # noqa: E402
from vllm.v1.worker import kv_connector_model_runner_mixin as mixin  # noqa: E402
from worker_pair import (  # noqa: E402, F401
    LAST,
    LAYERS,
    OURS,
    PROMPT,
    Engine,
    engines,
    lines,
    offer,
    same,
    until,
)


def _write(final: bool = True) -> Step:
    return Step(writes=[Write("here", "a", 0, OURS, 0, LAST, True, final)])


def _meet(prefill: Engine, decode: Engine) -> None:
    prefill.step(Step(expected=[Expected("a", PROMPT)]))
    decode.step(offer(prefill, decode, "a"))
    until(lambda: any("a" in heard.offered for heard in prefill.heard), prefill, decode)


def _content(decode: Engine) -> list[np.ndarray]:
    return [cache.array.copy() for cache in decode.caches.values()]


def test_a_step_that_ends_well_is_sent(engines: tuple[Engine, Engine]) -> None:
    prefill, decode = engines
    _meet(prefill, decode)
    prefill.step(_write())
    until(lambda: decode.loaded and prefill.sent, prefill, decode)
    assert same(prefill, decode)


@pytest.mark.parametrize("computed", [0, 1, 2], ids=["none", "the first layer", "all layers"])
def test_a_forward_that_raises_sends_nothing_that_it_has_not_computed(
    engines: tuple[Engine, Engine], lines: list[str], computed: int
) -> None:
    prefill, decode = engines
    _meet(prefill, decode)
    before = _content(decode)
    with pytest.raises(RuntimeError, match="out of memory"), prefill.forward(_write()):
        for layer in LAYERS[:computed]:
            prefill.connector.save_kv_layer(layer, None, None)  # type: ignore[arg-type]
        raise RuntimeError("out of memory")
    until(lambda: decode.failed and "here" in prefill.sent, prefill, decode)
    assert not decode.loaded
    sent = max(0, computed - 1)  # the last one that was saved may be saved again
    for now, had in list(zip(_content(decode), before, strict=True))[sent:]:
        assert np.array_equal(now, had)
    why = "the step that was to compute it failed: RuntimeError('out of memory')"
    for side in ("is not written to decode", "was not written by engine"):
        assert any(side in line and why in line for line in lines), side


def test_what_a_step_without_an_end_has_not_computed_is_not_sent(
    engines: tuple[Engine, Engine], lines: list[str]
) -> None:
    """vLLM may leave the end out altogether, as where a step is finalized after a draft model."""
    prefill, decode = engines
    _meet(prefill, decode)
    before = _content(decode)
    prefill.connector.bind_connector_metadata(_write())
    until(lambda: decode.failed and "here" in prefill.sent, prefill, decode)
    assert not decode.loaded
    assert all(map(np.array_equal, _content(decode), before))
    assert any("vLLM has not ended the step that was to compute it" in line for line in lines)


def test_vllm_lets_the_exception_be_seen(
    engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own context manager, by which it says so to the connector."""
    prefill, _ = engines
    said: list[str] = []
    monkeypatch.setattr(prefill.worker, "all_is_computed", said.append)
    monkeypatch.setattr(mixin, "get_kv_transfer_group", lambda: prefill.connector)
    monkeypatch.setattr(mixin, "get_forward_context", lambda: None)
    output: Any = SimpleNamespace(
        kv_connector_metadata=Step(), has_sync_kv_loads=False, finished_req_ids=set()
    )
    for error in (None, ValueError("no")):
        around = mixin.KVConnectorModelRunnerMixin._get_kv_connector_output(output)
        with contextlib.suppress(ValueError), around:
            if error is not None:
                raise error
    assert said == ["", "the step that was to compute it failed: ValueError('no')"]

"""Which layers of a step may leave: none before its last save, in whatever order and from whatever
threads vLLM saves them. No engine is started."""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
from kvxfer.vllm.layers import StepLayers, is_microbatched  # noqa: E402
from vllm.forward_context import ForwardContext, override_forward_context  # noqa: E402

_LAYERS = ("a", "b", "c")


def _sent(saves: list[str], microbatched: bool = False) -> tuple[list[str], str]:
    """What left at each of these saves, and what the end says."""
    layers = StepLayers()
    layers.begin(microbatched)
    return [layers.saved(each) for each in saves], layers.end()


def test_a_layer_leaves_with_the_next_one() -> None:
    assert _sent(["a", "b", "c"]) == (["", "a", "b"], "")


def test_each_saved_early_and_again() -> None:
    assert _sent(["a", "a", "b", "b", "b", "c"]) == (["", "", "a", "", "", "b"], "")


def test_a_split_step_leaves_at_its_end() -> None:
    assert _sent(["a", "b", "c", "a", "b", "c"], microbatched=True) == ([""] * 6, "")


def test_each_step_anew() -> None:
    layers = StepLayers()
    for _ in range(2):
        layers.begin(microbatched=False)
        assert [layers.saved(each) for each in _LAYERS] == ["", "a", "b"]
        assert layers.end() == ""


def test_any_order_of_two_microbatches_in_threads() -> None:
    """All interleavings of two threads that go through three layers: nothing leaves."""
    orders = set(itertools.permutations([0] * 3 + [1] * 3))
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        for order in orders:
            layers = StepLayers()
            layers.begin(microbatched=False)
            left = [iter(_LAYERS), iter(_LAYERS)]
            for thread in order:
                saving = (first, second)[thread].submit(layers.saved, next(left[thread]))
                assert saving.result() == ""
            assert layers.end() == ""


def test_any_order_in_one_thread_is_right_or_noticed() -> None:
    """Whatever leaves before its last save is reported at the end; and what was saved last stays."""
    randomness = random.Random(50)
    for _ in range(2000):
        saves = [randomness.choice(_LAYERS) for _ in range(randomness.randrange(1, 10))]
        sent, reopened = _sent(saves)
        early = {
            layer for at, layer in enumerate(sent) if layer and layer in saves[at + 1 :]
        }
        assert bool(reopened) == bool(early), saves
        assert reopened in early | {""}
        if not reopened:
            assert saves[-1] not in sent


def test_a_split_step_is_known_by_vllms_forward_context() -> None:
    assert "ubatch_slices" in ForwardContext.__dataclass_fields__
    assert not is_microbatched()
    for slices, split in (([slice(0, 8), slice(8, 16)], True), (None, False)):
        context: Any = SimpleNamespace(ubatch_slices=slices)
        with override_forward_context(context):
            assert is_microbatched() == split

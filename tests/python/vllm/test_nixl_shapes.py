"""vLLM's own NIXL connectors between engines that are not alike, over the `nixl` that is first in the
path: push, tensor and pipeline parallelism that differ, layers with and without a sliding window.

The oracle is one engine alone: what the prefill engine answers before anything was transferred.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from conversation import TRANSFERRED_TOKENS, Conversation, counted, make_prompts
from engine import Request
from engine_pair import NIXL, NIXL_PUSH, PP_2, TP_2, Connector, StartPair

_SEED = 22
_WINDOW = 64
# Around the bounds of a block, and of the window.
_LENGTHS = (31, 64, 65, 200, 517)


@dataclass(frozen=True)
class _Shape:
    connector: Connector
    window: int | None = None
    prefill: Mapping[str, Any] = field(default_factory=dict)
    decode: Mapping[str, Any] = field(default_factory=dict)


_SHAPES = {
    "push, hybrid": _Shape(NIXL_PUSH, _WINDOW),
    "push, hybrid, PP 2 to 1": _Shape(NIXL_PUSH, _WINDOW, prefill=PP_2),
    "pull, hybrid, TP 1 to 2": _Shape(NIXL, _WINDOW, decode=TP_2),
    "pull, TP 2 to 1": _Shape(NIXL, prefill=TP_2),
}


@pytest.fixture(scope="module", params=_SHAPES.values(), ids=_SHAPES.keys())
def talk(request: pytest.FixtureRequest, start_pair: StartPair) -> Conversation:
    shape: _Shape = request.param
    pair = start_pair(
        shape.connector,
        window=shape.window,
        prefill_options=shape.prefill,
        decode_options=shape.decode,
    )
    lengths = {str(length): length for length in _LENGTHS} | dict.fromkeys(("one", "other"), 150)
    talk = Conversation(pair, make_prompts(_SEED, lengths))
    pair.prefill.serve()
    talk.meet()
    return talk


def test_two_engines_answer_as_one(talk: Conversation) -> None:
    names = [str(length) for length in _LENGTHS]
    before = talk.pair.decode.metrics()
    assert talk.decode(talk.prefill(*names)) == talk.expected(*names)

    # Expect all of it to have come from the other engine, and that one to have let go of it.
    assert counted(talk.pair.decode, before)[TRANSFERRED_TOKENS] == sum(_LENGTHS)
    assert talk.pair.prefill.idle(10)
    assert counted(talk.pair.prefill)["vllm:nixl_num_kv_expired_reqs"] == 0


def test_the_cache_of_another_prompt_gives_other_tokens(talk: Conversation) -> None:
    """Else equal tokens would say nothing of what was transferred."""
    transfer = talk.prefill("other")["other"]
    wrong = Request(talk.prompts["one"], talk.new_tokens, transfer, "other")
    assert talk.pair.decode.generate(wrong)[0].tokens != talk.alone["one"]

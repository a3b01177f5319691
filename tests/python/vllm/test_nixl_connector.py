"""Prefill in one engine of vLLM, decode in another, the KV cache moved by vLLM's own NixlConnector
(in its pull mode) over the `nixl` that is first in the path: kvxfer's, or NIXL's own.

The oracle is one engine alone: what the prefill engine answers before anything was transferred.
"""

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from engine_pair import BLOCK_SIZE, Pair
from tiny_model import LAYERS, VOCABULARY, kv_block_bytes

_SEED = 20
_NEW_TOKENS = 16
# Around the bounds of a block, and of several.
_LENGTHS = (31, 32, 33, 64, 95, 200, 517)
_PREFIX_BLOCKS = 4

Tokens = list[int]


def _prompts() -> dict[str, Tokens]:
    print(f"seed of the prompts: {_SEED}")
    randomness = random.Random(_SEED)

    def new(length: int) -> Tokens:
        return [randomness.randrange(2, VOCABULARY) for _ in range(length)]

    prompts = {str(length): new(length) for length in _LENGTHS}
    prompts["same prefix"] = prompts["200"][: _PREFIX_BLOCKS * BLOCK_SIZE] + new(100)
    others = ("first", "second", "third", "kept", "wrong blocks", "dead peer", "after")
    prompts |= {name: new(150) for name in others}
    return prompts


class Conversation:
    """Prompts, what one engine alone answers to each, and how a pair of engines is asked."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.prompts = _prompts()
        answers = pair.prefill.call(
            "generate", requests=[self._request(name) for name in self.prompts]
        )
        self.alone = {
            name: answer["tokens"] for name, answer in zip(self.prompts, answers, strict=True)
        }
        # What is transferred is then computed again, as by an engine that never saw the prompts.
        assert pair.prefill.call("forget")
        self._meet()

    def prefill(self, *names: str) -> list[dict[str, Any]]:
        """The kv_transfer_params that a proxy would carry to the decode engine."""
        wish = {"do_remote_decode": True, "do_remote_prefill": False}
        requests = [self._request(name, wish) | {"max_tokens": 1} for name in names]
        return [a["transfer"] for a in self.pair.prefill.call("generate", requests=requests)]

    def decode(self, transfers: dict[str, Any]) -> dict[str, Tokens]:
        requests = [self._request(name, transfer) for name, transfer in transfers.items()]
        answers = self.pair.decode.call("generate", requests=requests)
        return {name: a["tokens"] for name, a in zip(transfers, answers, strict=True)}

    def fetched(self, since: dict[str, float] | None = None) -> dict[str, float]:
        """The decode engine's counters, less what they were."""
        now = self.pair.decode.call("metrics")
        return {key: value - (since or {}).get(key, 0.0) for key, value in now.items()}

    def _meet(self) -> None:
        """The engines' handshake, out of the tests' way: vLLM gives it five seconds and then fails
        every request that waits for it, which on a busy machine would be a test's."""
        for name in ("first", "second", "third"):
            self.decode({name: self.prefill(name)[0]})
            if self.fetched()["bytes"] > 0:
                return
        pytest.fail("the engines could not meet in three attempts")

    def _request(self, name: str, transfer: Any = None) -> dict[str, Any]:
        return {"prompt": self.prompts[name], "max_tokens": _NEW_TOKENS, "transfer": transfer}


@pytest.fixture(scope="module")
def talk(pair: Pair) -> Conversation:
    return Conversation(pair)


def _transferred_bytes(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE) * LAYERS * kv_block_bytes(BLOCK_SIZE)


def test_engines_run_over_the_chosen_nixl(pair: Pair) -> None:
    chosen = os.environ.get("KVXFER_NIXL_PATH")
    for engine in (pair.prefill, pair.decode):
        loaded = Path(engine.wait_until_up()["nixl"])
        if chosen:
            assert loaded.resolve().is_relative_to(Path(chosen).resolve())
        else:
            assert "nixl_cu13" in loaded.parts


def test_one_engine_answers_each_prompt_differently(talk: Conversation) -> None:
    """Else equal tokens would say nothing of the KV that they were computed from."""
    assert len({tuple(tokens) for tokens in talk.alone.values()}) == len(talk.prompts)


def test_two_engines_answer_as_one(talk: Conversation) -> None:
    names = [str(length) for length in _LENGTHS]
    before = talk.fetched()
    answers = talk.decode(dict(zip(names, talk.prefill(*names), strict=True)))
    assert answers == {name: talk.alone[name] for name in names}

    # Expect all of it to have come from the other engine.
    fetched = talk.fetched(before)
    assert fetched["external_tokens"] == sum(_LENGTHS)
    assert fetched["local_tokens"] == 0
    assert fetched["bytes"] == sum(_transferred_bytes(length) for length in _LENGTHS)
    assert fetched["transfers"] == len(_LENGTHS)
    assert fetched["failed_transfers"] == fetched["failed_notifications"] == 0


def test_what_decode_has_is_not_fetched(talk: Conversation) -> None:
    """A prompt that begins as an earlier one: only the blocks after the common ones are read."""
    assert talk.pair.decode.call("forget")
    talk.decode({"200": talk.prefill("200")[0]})
    before = talk.fetched()
    assert talk.decode({"same prefix": talk.prefill("same prefix")[0]}) == {
        "same prefix": talk.alone["same prefix"]
    }
    fetched = talk.fetched(before)
    common = _PREFIX_BLOCKS * BLOCK_SIZE
    rest = len(talk.prompts["same prefix"]) - common
    assert (fetched["local_tokens"], fetched["external_tokens"]) == (common, rest)
    assert fetched["bytes"] == _transferred_bytes(rest)


def test_prefill_lets_go_when_it_is_told(talk: Conversation) -> None:
    """Blocks are held for the reader, and freed by its notification: a lease would take 30 s."""
    prefill = talk.pair.prefill
    transfer = talk.prefill("kept")[0]
    prefill.call("generate", requests=[{"prompt": [2, 3], "max_tokens": 1, "transfer": None}])
    assert prefill.call("metrics")["cache_usage"] > 0

    talk.decode({"kept": transfer})
    end = time.monotonic() + 10
    while prefill.call("metrics")["cache_usage"] > 0:
        assert time.monotonic() < end, "the blocks that were read are still held"
        # An engine looks for notifications when it steps.
        prefill.call("generate", requests=[{"prompt": [2, 3], "max_tokens": 1, "transfer": None}])
    assert prefill.call("metrics")["expired_requests"] == 0


def test_wrong_blocks_give_other_tokens(talk: Conversation) -> None:
    """The same request twice; only the order of the blocks that are read differs."""
    wrong = talk.prefill("wrong blocks")[0]
    wrong["remote_block_ids"] = [ids[::-1] for ids in wrong["remote_block_ids"]]
    assert talk.decode({"wrong blocks": wrong}) != {"wrong blocks": talk.alone["wrong blocks"]}

    assert talk.pair.decode.call("forget")
    right = talk.prefill("wrong blocks")[0]
    assert talk.decode({"wrong blocks": right}) == {"wrong blocks": talk.alone["wrong blocks"]}


def test_decode_computes_what_a_dead_prefill_cannot_send(talk: Conversation) -> None:
    """Ends the prefill engine: it is the last test."""
    transfers = dict(zip(("dead peer", "after"), talk.prefill("dead peer", "after"), strict=True))
    before = talk.fetched()
    talk.pair.prefill.kill()
    for name, transfer in transfers.items():
        assert talk.decode({name: transfer}) == {name: talk.alone[name]}
    fetched = talk.fetched(before)
    assert fetched["bytes"] == 0
    assert fetched["failed_transfers"] >= 1

"""Prefill in one engine of vLLM, decode in another, the KV cache moved by vLLM's own NixlConnector
(in its pull mode) over the `nixl` that is first in the path: kvxfer's, or NIXL's own.

The oracle is one engine alone: what the prefill engine answers before anything was transferred.
"""

import os
import time
from pathlib import Path

import pytest
from conversation import (
    CACHE_USAGE,
    EXTERNAL_TOKENS,
    LOCAL_TOKENS,
    Conversation,
    counted,
    make_prompts,
)
from engine import Request
from engine_pair import BLOCK_SIZE, NIXL, Pair, StartPair
from tiny_model import LAYERS, kv_block_bytes

_SEED = 20
# Around the bounds of a block, and of several.
_LENGTHS = (31, 32, 33, 64, 95, 200, 517)
_PREFIX_BLOCKS = 4
_BYTES = "vllm:nixl_bytes_transferred"
_FAILED = "vllm:nixl_num_failed_transfers"


@pytest.fixture(scope="module")
def pair(start_pair: StartPair) -> Pair:
    return start_pair(NIXL)


@pytest.fixture(scope="module")
def talk(pair: Pair) -> Conversation:
    others = ("kept", "wrong blocks", "dead peer", "after")
    lengths = {str(length): length for length in _LENGTHS} | dict.fromkeys(others, 150)
    prompts = make_prompts(_SEED, lengths | {"same prefix": 228})
    common = _PREFIX_BLOCKS * BLOCK_SIZE
    prompts["same prefix"][:common] = prompts["200"][:common]
    talk = Conversation(pair, prompts)
    talk.meet()
    return talk


def _transferred_bytes(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE) * LAYERS * kv_block_bytes(BLOCK_SIZE)


def test_engines_run_over_the_chosen_nixl(pair: Pair) -> None:
    chosen = os.environ.get("KVXFER_NIXL_PATH")
    for engine in (pair.prefill, pair.decode):
        loaded = Path(engine.wait_until_up()["nixl"])
        if chosen:
            assert loaded.resolve().is_relative_to(Path(chosen).resolve().parent)
        else:
            assert "nixl_cu13" in loaded.parts


def test_one_engine_answers_each_prompt_differently(talk: Conversation) -> None:
    """Else equal tokens would say nothing of the KV that they were computed from."""
    assert len({tuple(tokens) for tokens in talk.alone.values()}) == len(talk.alone)


def test_two_engines_answer_as_one(talk: Conversation) -> None:
    names = [str(length) for length in _LENGTHS]
    before = talk.pair.decode.metrics()
    assert talk.decode(talk.prefill(*names)) == talk.expected(*names)

    # Expect all of it to have come from the other engine.
    fetched = counted(talk.pair.decode, before)
    assert fetched[EXTERNAL_TOKENS] == sum(_LENGTHS)
    assert fetched[LOCAL_TOKENS] == 0
    assert fetched[_BYTES] == sum(_transferred_bytes(length) for length in _LENGTHS)
    assert fetched[f"{_BYTES}_count"] == len(_LENGTHS)
    assert fetched[_FAILED] == fetched["vllm:nixl_num_failed_notifications"] == 0


def test_what_decode_has_is_not_fetched(talk: Conversation) -> None:
    """A prompt that begins as an earlier one: only the blocks after the common ones are read."""
    decode = talk.pair.decode
    assert decode.forget()
    talk.decode(talk.prefill("200"))
    before = decode.metrics()
    assert talk.decode(talk.prefill("same prefix")) == talk.expected("same prefix")
    fetched = counted(decode, before)
    common = _PREFIX_BLOCKS * BLOCK_SIZE
    rest = len(talk.prompts["same prefix"]) - common
    assert (fetched[LOCAL_TOKENS], fetched[EXTERNAL_TOKENS]) == (common, rest)
    assert fetched[_BYTES] == _transferred_bytes(rest)


def test_prefill_lets_go_when_it_is_told(talk: Conversation) -> None:
    """Blocks are held for the reader, and freed by its notification: a lease would take 30 s."""
    prefill = talk.pair.prefill
    transfers = talk.prefill("kept")
    prefill.generate(Request([2, 3], 1))
    assert prefill.metrics()[CACHE_USAGE] > 0

    talk.decode(transfers)
    end = time.monotonic() + 10
    while prefill.metrics()[CACHE_USAGE] > 0:
        assert time.monotonic() < end, "the blocks that were read are still held"
        # An engine looks for notifications when it steps.
        prefill.generate(Request([2, 3], 1))
    assert counted(prefill)["vllm:nixl_num_kv_expired_reqs"] == 0


def test_wrong_blocks_give_other_tokens(talk: Conversation) -> None:
    """The same request twice; only the order of the blocks that are read differs."""
    wrong = talk.prefill("wrong blocks")
    for transfer in wrong.values():
        transfer["remote_block_ids"] = [ids[::-1] for ids in transfer["remote_block_ids"]]
    assert talk.decode(wrong) != talk.expected("wrong blocks")

    assert talk.pair.decode.forget()
    right = talk.prefill("wrong blocks")
    assert talk.decode(right) == talk.expected("wrong blocks")


def test_decode_computes_what_a_dead_prefill_cannot_send(talk: Conversation) -> None:
    """Ends the prefill engine: it is the last test."""
    transfers = talk.prefill("dead peer", "after")
    before = talk.pair.decode.metrics()
    talk.pair.prefill.kill()
    for name, transfer in transfers.items():
        assert talk.decode({name: transfer}) == talk.expected(name)
    fetched = counted(talk.pair.decode, before)
    assert fetched[_BYTES] == 0
    assert fetched[_FAILED] >= 1

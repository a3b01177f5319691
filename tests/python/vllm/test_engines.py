"""The engines as the other tests use them: requests side by side, engines that step by themselves
or are restarted; over a model with two KV groups and vLLM's NixlConnector."""

import os
import time
from collections.abc import Callable

import pytest
from conversation import EXTERNAL_TOKENS, Conversation, counted, make_prompts
from engine import wait_for
from engine_pair import BLOCK_SIZE, NIXL, Pair, StartPair
from tiny_model import LAYERS, kv_block_bytes

_SEED = 21
_WINDOW = 64
_LENGTHS = (31, 64, 65, 200, 517)
_BYTES = "vllm:nixl_bytes_transferred"


@pytest.fixture(scope="module")
def pair(start_pair: StartPair) -> Pair:
    return start_pair(NIXL, window=_WINDOW)


@pytest.fixture(scope="module")
def talk(pair: Pair) -> Conversation:
    others = (
        "wrong blocks",
        "served",
        "aborted",
        "side by side",
        "alone",
        "restarted",
        "recomputed",
    )
    lengths = {str(length): length for length in _LENGTHS} | dict.fromkeys(others, 150)
    talk = Conversation(pair, make_prompts(_SEED, lengths))
    talk.meet()
    return talk


def _becomes(what: Callable[[], bool], limit_s: float = 10.0) -> bool:
    end = time.monotonic() + limit_s
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_layers_with_a_window_are_a_group(pair: Pair) -> None:
    for engine in pair.engines:
        groups = engine.wait_until_up()["kv_groups"]
        assert [group["spec"] for group in groups] == ["SlidingWindowSpec", "FullAttentionSpec"]
        assert [len(group["layers"]) for group in groups] == [LAYERS // 2, LAYERS // 2]


def test_one_engine_answers_each_prompt_differently(talk: Conversation) -> None:
    assert len({tuple(tokens) for tokens in talk.alone.values()}) == len(talk.alone)


def test_two_engines_answer_as_one(talk: Conversation) -> None:
    names = [str(length) for length in _LENGTHS]
    before = talk.pair.decode.metrics()
    assert talk.decode(talk.prefill(*names)) == talk.expected(*names)
    fetched = counted(talk.pair.decode, before)
    assert fetched[EXTERNAL_TOKENS] == sum(_LENGTHS)
    blocks = sum(-(-length // BLOCK_SIZE) for length in _LENGTHS)
    # What has left the window is nobody's.
    assert 0 < fetched[_BYTES] < blocks * LAYERS * kv_block_bytes(BLOCK_SIZE)


@pytest.mark.parametrize("group", [0, 1])
def test_wrong_blocks_of_one_group_give_other_tokens(talk: Conversation, group: int) -> None:
    """Else equal tokens would say nothing of that group."""
    wrong = talk.prefill("wrong blocks")
    wrong["wrong blocks"]["remote_block_ids"][group].reverse()
    assert talk.decode(wrong) != talk.expected("wrong blocks")
    assert talk.pair.decode.forget()


def test_an_engine_that_serves_lets_go_by_itself(talk: Conversation) -> None:
    prefill = talk.pair.prefill
    assert prefill.idle(10)
    free = prefill.free_blocks()
    prefill.serve()
    transfers = talk.prefill("served")
    assert prefill.free_blocks() < free
    talk.decode(transfers)
    assert _becomes(lambda: prefill.free_blocks() == free)
    prefill.serve(False)


def test_requests_run_side_by_side(talk: Conversation) -> None:
    """One is aborted; another comes while the first is decoded."""
    prefill, decode = talk.pair.engines
    assert prefill.idle(10) and decode.idle(10)
    free = decode.free_blocks()
    decode.add(talk.request("aborted", talk.prefill("aborted")["aborted"]))
    decode.poll(0)
    assert decode.free_blocks() < free
    decode.add(talk.request("alone"))
    prefill.add(talk.prefill_request("side by side"))
    transfer = wait_for([prefill], ["side by side"])["side by side"].transfer
    decode.abort("aborted")
    decode.add(talk.request("side by side", transfer))
    answers = wait_for([decode, prefill], ["alone", "side by side"])
    assert {name: answer.tokens for name, answer in answers.items()} == talk.expected(
        "alone", "side by side"
    )
    assert {answer.reason for answer in answers.values()} == {"length"}
    assert decode.idle(10) and decode.free_blocks() == free
    assert prefill.idle(10)


def test_an_engine_that_is_restarted_is_the_same_to_the_other(talk: Conversation) -> None:
    prefill, decode = talk.pair.engines
    transfers = talk.prefill("restarted")
    decode.restart()
    assert talk.decode(transfers) == talk.expected("restarted")
    assert counted(decode)[_BYTES] > 0

    assert prefill.idle(10)
    if "KVXFER_NIXL_PATH" in os.environ:  # with NIXL's own the process crashes when it ends
        prefill.leave()
    prefill.restart()
    assert prefill.free_blocks() == prefill.wait_until_up()["free_blocks"]
    transfers = talk.prefill("recomputed")
    assert transfers["recomputed"]["remote_engine_id"].startswith(
        prefill.config["kv_transfer_config"]["engine_id"]
    )
    assert talk.decode(transfers) == talk.expected("recomputed")

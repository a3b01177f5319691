"""KvxferConnector between two engines of vLLM, with models whose KV cache is not one kind of block, and
engines that divide it otherwise: tokens are those of one engine alone."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from conversation import EXTERNAL_TOKENS, Conversation, counted, make_prompts
from engine import Tokens, Transfer, wait_for
from engine_pair import KVXFER, TP_2, Pair, StartPair
from pushes import beside, known_of, prefill_to_push
from tiny_models import write_draft_model, write_latent_model, write_state_model

_SEED = 47
# One token; around the bound of a block of attention's kernel, and of chunks of prefill.
_LENGTHS = (1, 15, 16, 17, 31, 32, 33, 200, 500)
# Latent attention computes one token otherwise than several: what one engine alone says is comparable
# only where it, too, has all but the last token in its cache, which has whole blocks.
_LATENT_LENGTHS = tuple(32 * blocks + 1 for blocks in (1, 2, 3, 7, 15))
_LEASE_S = 2
_EXTRA = {"host": "127.0.0.1", "lease": _LEASE_S, "timeout": 5, "handshake_timeout": 5}
_CONNECTOR = dataclasses.replace(KVXFER, extra=_EXTRA)
_PIPELINED = dataclasses.replace(_CONNECTOR, module="pipelined")
_STAGES = {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}
_ONE = {
    "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "distributed_executor_backend": "uni",
}  # fmt: skip
# vLLM computes these on CPUs in bfloat16 only, where two tokens may be as good as each other: what then
# decides is in which order numbers were added, and with what other requests in the batch.
_ROUNDED = {"dtype": "bfloat16"}
_CASES: Mapping[str, Mapping[str, Any]] = {
    "latent": {"write": write_latent_model, **_ROUNDED},
    "states": {"write": write_state_model, **_ROUNDED},
    "draft": {"draft": write_draft_model},
    "stages 2 to 1": {"connector": _PIPELINED, **_STAGES, "decode_options": _ONE},
    "stages 1 to 2": {"connector": _PIPELINED, "decode_options": _STAGES},
    "ranks 2 to 1": {**TP_2, "decode_options": _ONE},
}


@pytest.fixture(scope="module", params=_CASES)
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def pair(start_pair: StartPair, case: str) -> Pair:
    options = {"connector": _CONNECTOR, "max_num_batched_tokens": 128, **_CASES[case]}
    pair = start_pair(**options)
    for engine in pair.engines:
        engine.serve()
    return pair


@pytest.fixture(scope="module")
def talk(pair: Pair, case: str) -> Conversation:
    latent = "latent" in case
    lengths = _LATENT_LENGTHS if latent else _LENGTHS
    talk = Conversation(pair, make_prompts(_SEED, {str(length): length for length in lengths}))
    if latent:
        for _ in range(2):  # the second time from its cache
            talk.alone = {
                name: pair.decode.generate(talk.request(name))[0].tokens for name in talk.prompts
            }
        assert pair.decode.forget()
    talk.meet()
    return talk


@pytest.fixture(autouse=True)
def _all_comes_back(pair: Pair) -> Any:
    """After every test each engine has as many free blocks as at its start."""
    yield
    pair.assert_all_comes_back(_LEASE_S + 10)


def _decoded(
    talk: Conversation, prefill: Callable[..., Mapping[str, Transfer]], case: str
) -> dict[str, Tokens]:
    """Of all prompts: at once, or one after the other, where others in a batch are of account."""
    names = _names(talk)
    if "latent" not in case:
        return talk.decode(prefill(*names))
    answers: dict[str, Tokens] = {}
    for name in names:
        answers |= talk.decode(prefill(name))
    return answers


def _same(answers: Mapping[str, Tokens], talk: Conversation, case: str) -> bool:
    """Rounded ones: but for one that goes another way after its first token. Blocks or states that are
    not what they should be give other tokens to each prompt, from the first one on."""
    others = [name for name, tokens in answers.items() if tokens != talk.alone[name]]
    print(f"other tokens: { {name: (answers[name], talk.alone[name]) for name in others} }")
    rounded = "latent" in case or "states" in case
    return not others or (
        rounded and len(others) == 1 and answers[others[0]][0] == talk.alone[others[0]][0]
    )


def _names(talk: Conversation) -> list[str]:
    return [name for name in talk.prompts if name.isdecimal()]


def _loadable(names: list[str], case: str) -> int:
    """Tokens in all."""
    left_to_decode = 1 if "states" in case else 0
    return sum(int(name) - left_to_decode for name in names)


def test_pull_answers_as_one_engine(talk: Conversation, case: str) -> None:
    names = _names(talk)
    before = counted(talk.pair.decode)
    assert _same(_decoded(talk, talk.prefill, case), talk, case)
    loaded = counted(talk.pair.decode, before)[EXTERNAL_TOKENS]
    assert loaded == _loadable(names, case)


def test_push_answers_as_one_engine(talk: Conversation, case: str) -> None:
    """When decode has its reference."""
    names = _names(talk)
    before = counted(talk.pair.decode)
    assert _same(_decoded(talk, partial(prefill_to_push, talk), case), talk, case)
    loaded = counted(talk.pair.decode, before)[EXTERNAL_TOKENS]
    assert loaded == _loadable(names, case)


def test_push_beside_prefill_answers_as_one_engine(talk: Conversation, case: str) -> None:
    names = _names(talk)
    (transfer,) = talk.prefill(names[0]).values()
    known = known_of(transfer)
    talk.decode({names[0]: transfer})
    answers = {}
    for name in names[-3:]:
        before = counted(talk.pair.decode)
        prefill, decode = beside(talk, name, known)
        talk.pair.decode.add(decode)
        talk.pair.prefill.add(prefill)
        answers[name] = wait_for(talk.pair.engines, {name, f"{name}-p"})[name].tokens
        loaded = counted(talk.pair.decode, before)[EXTERNAL_TOKENS]
        assert loaded == _loadable([name], case)
    assert _same(answers, talk, case)

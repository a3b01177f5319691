"""Prompts, what one engine alone answers to each, and how a pair of engines is asked.

The oracle is one engine alone: what the prefill engine answers before anything was transferred.
"""

import random
from collections.abc import Mapping

import pytest
from engine import Engine, Request, Tokens, Transfer
from engine_pair import Pair
from tiny_model import VOCABULARY

# Counters and gauges of every vLLM, as Engine.metrics() names them.
LOCAL_TOKENS = "vllm:prefix_cache_hits"
EXTERNAL_TOKENS = "vllm:external_prefix_cache_hits"
# Without those that were computed after all, which EXTERNAL_TOKENS has.
TRANSFERRED_TOKENS = "vllm:prompt_tokens_by_source{source=external_kv_transfer}"
CACHE_USAGE = "vllm:kv_cache_usage_perc"

_MEETINGS = ("first meeting", "second meeting", "third meeting")


def make_prompts(seed: int, lengths: Mapping[str, int]) -> dict[str, Tokens]:
    """By name, of these lengths. No two begin alike: none is in the cache for another's sake."""
    print(f"seed of the prompts: {seed}")
    randomness = random.Random(seed)
    firsts = randomness.sample(range(2, VOCABULARY), len(lengths))
    return {
        name: [first] + [randomness.randrange(2, VOCABULARY) for _ in range(length - 1)]
        for first, (name, length) in zip(firsts, lengths.items(), strict=True)
    }


def counted(engine: Engine, since: Mapping[str, float] | None = None) -> dict[str, float]:
    """The engine's metrics less what they were; 0 of what it does not have."""
    now = engine.metrics()
    before = since or {}
    return _Zero({name: value - before.get(name, 0.0) for name, value in now.items()})


class _Zero(dict[str, float]):
    """A counter that vLLM shows from its first increment on is 0 before."""

    def __missing__(self, name: str) -> float:
        return 0.0


class Conversation:
    """Wants a pair that has transferred nothing yet."""

    def __init__(self, pair: Pair, prompts: Mapping[str, Tokens], new_tokens: int = 16) -> None:
        self.pair = pair
        self.prompts = dict(prompts)
        self.new_tokens = new_tokens
        answers = pair.prefill.generate(*(self.request(name) for name in self.prompts))
        self.alone = {
            name: answer.tokens for name, answer in zip(self.prompts, answers, strict=True)
        }
        # What is transferred is then computed again, as by an engine that never saw the prompts.
        assert pair.prefill.forget()

    def request(self, name: str, transfer: Transfer | None = None) -> Request:
        """For Engine.generate() or add(), where it has the prompt's name."""
        return Request(self.prompts[name], self.new_tokens, transfer, name)

    def prefill_request(self, name: str) -> Request:
        """As a proxy asks the engine that prefills."""
        wish = {"do_remote_decode": True, "do_remote_prefill": False}
        return Request(self.prompts[name], 1, wish, name)

    def prefill(self, *names: str) -> dict[str, Transfer]:
        """By name the kv_transfer_params that a proxy would carry to the decode engine."""
        answers = self.pair.prefill.generate(*(self.prefill_request(name) for name in names))
        transfers = {}
        for answer in answers:
            assert answer.transfer, f"nothing to carry to the decode engine: {answer}"
            transfers[answer.name] = answer.transfer
        return transfers

    def decode(self, transfers: Mapping[str, Transfer]) -> dict[str, Tokens]:
        requests = [self.request(name, transfer) for name, transfer in transfers.items()]
        return {answer.name: answer.tokens for answer in self.pair.decode.generate(*requests)}

    def expected(self, *names: str) -> dict[str, Tokens]:
        """What decode() is to give."""
        return {name: self.alone[name] for name in names}

    def meet(self) -> None:
        """The engines' handshake, out of the tests' way: a connector may give it five seconds and
        then fail every request that waits for it, which on a busy machine would be a test's."""
        self.prompts |= make_prompts(0, dict.fromkeys(_MEETINGS, 50))
        for name in _MEETINGS:
            before = counted(self.pair.decode)
            self.decode(self.prefill(name))
            if counted(self.pair.decode, before)[TRANSFERRED_TOKENS] > 0:
                return
        pytest.fail(f"the engines could not meet in {len(_MEETINGS)} attempts")

"""What a vLLM engine in a process of its own can be asked.

Two ways: generate() for a batch that is waited for; add(), poll() and abort() for requests that run
side by side. An engine steps inside of calls only, unless it serves.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from engine_process import EngineProcess
from nursery import ForkedEngine, start_engine_process

Tokens = list[int]
Transfer = dict[str, Any]
"""kv_transfer_params: what a proxy carries from one engine to the other."""

_POLL_S = 0.05
_MARGIN_S = 60.0  # of a call whose work has a limit of its own


@dataclass(frozen=True)
class Request:
    prompt: Tokens
    max_tokens: int
    transfer: Transfer | None = None
    name: str = ""
    """The request id as a client gives it, which vLLM adds to; default: one that no other has."""


@dataclass(frozen=True)
class Answer:
    name: str
    tokens: Tokens
    reason: str
    """vLLM's finish_reason: "length", "error" ..."""
    transfer: Transfer | None
    seconds: float
    """From when the engine was given the request until it had the last token."""


class Engine(EngineProcess):
    """Not safe for use by two threads."""

    def _begin(self, log: IO[bytes]) -> ForkedEngine:
        return start_engine_process(self._env, self.config, log.fileno())

    def generate(self, *requests: Request, limit_s: float = 60.0) -> list[Answer]:
        """Answers in the order of the requests, when all have finished."""
        sent = [asdict(request) for request in requests]
        return [Answer(**each) for each in self.call("generate", limit_s, requests=sent)]

    def add(self, request: Request) -> str:
        """The name of the request, which goes on while the engine steps."""
        name: str = self.call("add", request=asdict(request))
        return name

    def reject(self, transfer: Transfer) -> None:
        """A request with these kv_transfer_params, as vLLM's server does that refuses one itself."""
        self.call("reject", transfer=transfer)

    def poll(self, for_s: float) -> list[Answer]:
        """Steps until a request that was added has finished, there is nothing to do, or the time is
        over, but at least once; what has finished since the last poll."""
        answers = self.call("poll", for_s + _MARGIN_S, for_s=for_s)
        return [Answer(**each) for each in answers]

    def abort(self, *names: str) -> None:
        """As clients that hang up: no answer comes of these."""
        self.call("abort", names=names)

    def idle(self, for_s: float) -> bool:
        """Steps until nothing is left to do: requests, blocks that are kept for a connector, what
        the connector has under way. False: the time is over."""
        return bool(self.call("idle", for_s + _MARGIN_S, for_s=for_s))

    def serve(self, serve: bool = True) -> None:
        """Whether it steps between calls too, while vLLM's own loop would."""
        self.call("serve", serve=serve)

    def longest_step(self) -> float:
        """Seconds, of those since it was last asked."""
        return float(self.call("longest_step"))

    def free_blocks(self) -> int:
        """Of the pool that all groups share. Steps nothing."""
        return int(self.call("free_blocks"))

    def metrics(self) -> dict[str, float]:
        """By vLLM's names, "vllm:...", without "_total": a counter or gauge's value, a histogram's
        sum and, as NAME_count, its number; with labels also each as NAME{LABEL=VALUE,...}. As of
        the last step."""
        metrics: dict[str, float] = self.call("metrics")
        return metrics

    def forget(self) -> bool:
        """Drops cached prefixes. False: there are blocks in use."""
        return bool(self.call("forget"))


def wait_for(
    engines: Sequence[Engine], names: Collection[str], limit_s: float = 60.0
) -> dict[str, Answer]:
    """The answers to requests that were added to these engines, all of which step meanwhile. What
    else finishes there is dropped. TimeoutError has the names that are missing."""
    answers: dict[str, Answer] = {}
    end = time.monotonic() + limit_s
    while missing := set(names) - answers.keys():
        if time.monotonic() > end:
            raise TimeoutError(f"requests have not finished in {limit_s:.0f} s: {sorted(missing)}")
        for engine in engines:
            answers |= {answer.name: answer for answer in engine.poll(_POLL_S)}
    return {name: answers[name] for name in names}

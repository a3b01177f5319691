"""Clients and a proxy with many requests at once, of every kind, while engines are killed, stopped and
started anew: every request is answered as one engine alone would, or was aborted."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conversation import Conversation
from engine import Answer, Engine, Request, Transfer
from pushes import PUSH, beside, known_of

_AT_ONCE = 8
_WHILE_AWAY = 6  # requests that come while an engine is away; the others wait for it
_POLL_S = 0.005
_ABORTED = 0.12  # of all requests
_ABORT_WITHIN_S = 0.06
_PATIENCE_S = 20.0  # that an engine which is there may need for its part of a request
_KINDS = ("pull", "pull", "push", "beside", "beside")
_PULL = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass
class _Job:
    """What one client wants. Its name differs with each attempt."""

    number: int
    prompt: str
    kind: str
    abort_at: float | None
    attempt: int = 0
    at_decode: bool = False
    transfer: Transfer | None = None  # for decode, that is not there
    waits: bool = False  # for decode to be there
    age: float = 0.0  # seconds with the engine that has it, while that is there

    @property
    def name(self) -> str:
        return f"{self.number}.{self.attempt}"


class _Place:
    """An engine that may be away for a while."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.starts = False
        self._until = 0.0  # it is stopped

    def is_there(self) -> bool:
        if self._until:
            if time.monotonic() < self._until:
                return False
            self.engine.proceed()
            self._until = 0.0
        if self.starts:
            if not self.engine.is_up():
                return False
            self.engine.serve()
            self.starts = False
        return True

    def kill(self) -> None:
        self.engine.restart()
        self.starts = True

    def pause(self, for_s: float) -> None:
        self.engine.pause()
        self._until = time.monotonic() + for_s


@dataclass
class Storm:
    """`kills`: before which requests an engine is killed; the same of `pauses`."""

    talk: Conversation
    randomness: random.Random
    count: int
    prefill_kills: set[int]
    decode_kills: set[int]
    prefill_pauses: set[int]
    decode_pauses: set[int]
    answered: int = 0
    aborted: int = 0
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _begun: int = 0
    _begun_away: int = 0
    _known: dict[str, Any] | None = None  # of prefill, as of its last answer

    def __post_init__(self) -> None:
        self._prefill = _Place(self.talk.pair.prefill)
        self._decode = _Place(self.talk.pair.decode)

    def run(self) -> None:
        last = time.monotonic()
        while self._jobs or self._begun < self.count:
            self._disturb()
            self._begin_some()
            for place, take in ((self._prefill, self._prefilled), (self._decode, self._decoded)):
                if place.is_there():
                    for answer in place.engine.poll(_POLL_S):
                        take(answer)
            self._go_on_with_those_that_wait()
            self._abort_some()
            now = time.monotonic()
            self._grow_older(now - last)
            last = now
        for place in (self._prefill, self._decode):
            while not place.is_there():
                time.sleep(_POLL_S)

    # --- engines ---

    def _disturb(self) -> None:
        happenings: tuple[tuple[set[int], _Place, Callable[[], None]], ...] = (
            (self.prefill_kills, self._prefill, self._kill_prefill),
            (self.decode_kills, self._decode, self._kill_decode),
            (self.prefill_pauses, self._prefill, lambda: self._pause(self._prefill)),
            (self.decode_pauses, self._decode, lambda: self._pause(self._decode)),
        )
        for when, place, happens in happenings:
            if when and min(when) <= self._begun and place.is_there():
                when.remove(min(when))
                happens()

    def _pause(self, place: _Place) -> None:
        place.pause(self.randomness.choice((0.3, 1.0, 3.5)))

    def _kill_prefill(self) -> None:
        self._prefill.kill()
        for job in self._of(at_decode=False):
            self._to_decode(job, None)

    def _kill_decode(self) -> None:
        self._decode.kill()
        for job in self._of(at_decode=True):
            self._begin(job)

    def _of(self, at_decode: bool) -> list[_Job]:
        return [job for job in self._jobs.values() if job.at_decode == at_decode and not job.waits]

    # --- requests ---

    def _begin_some(self) -> None:
        away = not (self._prefill.is_there() and self._decode.is_there())
        if not away:
            self._begun_away = 0
        while len(self._jobs) < _AT_ONCE and self._begun < self.count:
            if away and self._begun_away >= _WHILE_AWAY:
                return
            abort = self.randomness.random() < _ABORTED
            self._begin(
                _Job(
                    self._begun,
                    self.randomness.choice(list(self.talk.prompts)),
                    self.randomness.choice(_KINDS),
                    time.monotonic() + self.randomness.uniform(0.0, _ABORT_WITHIN_S) if abort else None,
                )
            )
            self._begun += 1
            self._begun_away += away

    def _begin(self, job: _Job) -> None:
        self._jobs.pop(job.name, None)
        job.attempt += 1
        job.at_decode, job.age = False, 0.0
        self._jobs[job.name] = job
        if not self._prefill.is_there():
            self._to_decode(job, None)
        elif job.kind == "beside" and self._known and self._decode.is_there():
            wish, room = beside(self.talk, job.prompt, self._known)
            self._prefill.engine.add(self._named(wish, f"{job.name}-p"))
            self._to_decode(job, room.transfer)
        else:
            wished = _PULL if job.kind == "pull" else PUSH
            prompt = self.talk.prompts[job.prompt]
            self._prefill.engine.add(Request(prompt, 1, wished, f"{job.name}-p"))

    @staticmethod
    def _named(request: Request, name: str) -> Request:
        return Request(request.prompt, request.max_tokens, request.transfer, name)

    def _prefilled(self, answer: Answer) -> None:
        if answer.transfer:
            self._known = known_of(answer.transfer)
        job = self._jobs.get(answer.name.removesuffix("-p"))
        if job is not None and not job.at_decode:
            self._to_decode(job, answer.transfer)

    def _to_decode(self, job: _Job, transfer: Transfer | None) -> None:
        job.at_decode, job.age = True, 0.0
        job.waits = not self._decode.is_there()
        if job.waits:
            job.transfer = transfer
        else:
            self._decode.engine.add(self._named(self.talk.request(job.prompt, transfer), job.name))

    def _go_on_with_those_that_wait(self) -> None:
        if self._decode.is_there():
            for job in [job for job in self._jobs.values() if job.waits]:
                self._to_decode(job, job.transfer)

    def _decoded(self, answer: Answer) -> None:
        job = self._jobs.pop(answer.name, None)
        if job is None:
            return
        assert answer.reason == "length", (job, answer)
        assert answer.tokens == self.talk.alone[job.prompt], (job, answer)
        self.answered += 1

    def _abort_some(self) -> None:
        now = time.monotonic()
        for name, job in list(self._jobs.items()):
            place = self._decode if job.at_decode else self._prefill
            if job.abort_at is None or now < job.abort_at or not place.is_there():
                continue
            del self._jobs[name]
            place.engine.abort(name if job.at_decode else f"{name}-p")
            self.aborted += 1

    def _grow_older(self, seconds: float) -> None:
        for job in self._jobs.values():
            place = self._decode if job.at_decode else self._prefill
            if place.is_there():
                job.age += seconds
            assert job.age < _PATIENCE_S, f"{job} is not answered"

"""The writes of a chunk to one rank of decode."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import kvxfer
from kvxfer.sglang import wire
from kvxfer.sglang.layout import Layout
from kvxfer.sglang.pairing import Copies, Plan, Refused
from kvxfer.sglang.wire import Ids, Part, Want


@dataclass(frozen=True)
class Chunk:
    """``pages`` of this rank are those from the ``first`` on of what decode has asked for. ``last``: with
    these, the metadata at index ``aux`` and the states go, and nothing after them. ``event``: nothing is
    read before this CUDA event; None: it is all there."""

    pages: Ids
    first: int
    last: bool = False
    aux: int = 0
    states: tuple[Ids, ...] = ()
    event: Any = None


@dataclass(eq=False)
class Copy:
    """What one rank of decode gets of a request."""

    peer: str
    want: Want
    heard: float  # when decode has said last that it waits for it
    parts: int = 0
    open: dict[int, kvxfer.Transfer] = field(default_factory=dict)  # by word
    over: str = ""  # why nothing more is written


class Writer:
    """Called with the lock of its owner held."""

    def __init__(self, agent: kvxfer.Agent, layout: Layout, deadline: float) -> None:
        self._agent = agent
        self._layout = layout
        self._deadline = deadline
        self._words = itertools.count(1)
        self._by_word: dict[int, Copy] = {}

    def post(self, copy: Copy, plan: Plan, chunk: Chunk) -> None:
        """Refused, or an error of kvxfer: perhaps after some of it was posted."""
        writes = self._writes(plan, copy.want, chunk)
        for nth, (copies, source, target) in enumerate(writes):
            last = chunk.last and nth == len(writes) - 1
            self._write(copy, copies, source, target, last, chunk.event)
        if chunk.last and not writes:
            self._notify(copy, chunk.event)

    def of(self, word: int) -> Copy | None:
        return self._by_word.get(word)

    def forget(self, word: int) -> None:
        """It has ended, and nothing of it can land."""
        copy = self._by_word.pop(word)
        del copy.open[word]

    def quiet(self) -> list[tuple[int, Copy]]:
        """Writes of copies that are over which were quarantined, and are not any more."""
        return [
            (word, copy)
            for word, copy in self._by_word.items()
            if copy.over and copy.open[word].done() and not copy.open[word].quarantined
        ]

    def is_idle(self) -> bool:
        return not self._by_word

    def _write(
        self, copy: Copy, copies: Copies, source: Ids, target: Ids, last: bool, event: Any
    ) -> None:
        word = next(self._words)
        transfer = self._agent.write(
            copy.peer,
            copies.local,
            copies.remote,
            copies.ids(source),
            copies.ids(target),
            notification=_part(copy, last),
            deadline=self._deadline,
            user_word=word,
            **_after(event),
        )
        self._posted(copy, word, transfer)

    def _notify(self, copy: Copy, event: Any) -> None:
        word = next(self._words)
        transfer = self._agent.notify(
            copy.peer, _part(copy, True), deadline=self._deadline, user_word=word, **_after(event)
        )
        self._posted(copy, word, transfer)

    def _posted(self, copy: Copy, word: int, transfer: kvxfer.Transfer) -> None:
        copy.parts += 1
        copy.open[word] = transfer
        self._by_word[word] = copy

    def _writes(self, plan: Plan, want: Want, chunk: Chunk) -> list[tuple[Copies, Ids, Ids]]:
        """What goes where; the metadata are the last."""
        end = chunk.first + len(chunk.pages)
        there = want.pages[chunk.first : end]
        if len(there) != len(chunk.pages) or (chunk.last and end != len(want.pages)):
            raise Refused(
                f"prefill sends pages {chunk.first} to {end}, decode has {len(want.pages)}"
            )
        writes = []
        if len(there) and plan.kv is not None:
            writes.append((plan.kv, chunk.pages, there))
        if chunk.last:
            writes += self._states(plan, want, chunk)
            if plan.aux is not None and plan.aux.local:
                writes.append((plan.aux, wire.indices([chunk.aux]), wire.indices([want.aux])))
        return writes

    def _states(self, plan: Plan, want: Want, chunk: Chunk) -> list[tuple[Copies, Ids, Ids]]:
        writes = []
        for index, copies in enumerate(plan.states):
            source = chunk.states[index] if index < len(chunk.states) else wire.indices(None)
            target = want.states[index]
            if len(source) != len(target):
                raise Refused(
                    f'state "{self._layout.states[index].kind}": prefill has {len(source)} items of '
                    f"it, decode {len(target)}"
                )
            if copies is not None and len(source):
                writes.append((copies, source, target))
        return writes


def _part(copy: Copy, last: bool) -> bytes:
    return Part(copy.want.request, copy.parts, copy.parts + 1 if last else 0).encode()


def _after(event: Any) -> dict[str, Any]:
    """An event that there is none of is not named: kvxfer refuses it where there is no CUDA."""
    return {} if event is None else {"event": event}

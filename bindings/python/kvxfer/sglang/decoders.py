"""The ranks of decode that a rank of prefill has met."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

import kvxfer
from kvxfer.sglang import wire
from kvxfer.sglang.layout import Layout, from_message
from kvxfer.sglang.log import shown, warn_of_peer
from kvxfer.sglang.memory import check_offered
from kvxfer.sglang.pairing import Plan, Refused, plan_of

_MAX = 4096
_FORGET_LOST_S = 60.0


@dataclass(frozen=True)
class Model:
    """What only prefill is told of the model."""

    heads: int = 0
    """KV heads in all; 0: not known."""
    hybrid_mla: bool = False
    swa_layout: str | None = None


@dataclass(eq=False)
class _Decoder:
    """In one life."""

    plan: Plan
    lost: float = 0.0  # since when


class Decoders:
    """Called with the lock of its owner held."""

    def __init__(self, agent: kvxfer.Agent, layout: Layout, model: Model) -> None:
        self._agent = agent
        self._layout = layout
        self._model = model
        self._known: dict[str, _Decoder] = {}

    def greet(self, note: kvxfer.Notification, message: dict[str, Any], busy: set[str]) -> None:
        """Answers a "hello". ``busy``: those that something is under way with."""
        try:
            self._introduce(note, message, busy)
        except (Refused, ValueError, kvxfer.Error) as error:
            warn_of_peer("hello", "%s is not served: %s", shown(note.peer), shown(error))
            wire.tell(self._agent, note.peer, {"do": "refused", "why": str(error)[:1000]})
            return
        wire.tell(self._agent, note.peer, {"do": "welcome"})

    def plan(self, name: str) -> Plan | None:
        """None: it was not met, or is gone."""
        known = self._known.get(name)
        return None if known is None or known.lost else known.plan

    def heard(self, name: str) -> None:
        if known := self._known.get(name):
            known.lost = 0.0

    def lost(self, name: str) -> None:
        if known := self._known.get(name):
            known.lost = time.monotonic()

    def is_lost(self, name: str) -> bool:
        known = self._known.get(name)
        return known is not None and known.lost > 0.0

    def sweep(self, busy: set[str]) -> None:
        """One whose connection was cut may come again, but not for ever."""
        self._forget(time.monotonic() - _FORGET_LOST_S, busy)

    def clear(self) -> None:
        self._known.clear()

    def _introduce(
        self, note: kvxfer.Notification, message: dict[str, Any], busy: set[str]
    ) -> None:
        name = self._agent.add_peer(wire.unpacked_bytes(message.get("metadata")))
        if name != note.peer or self._agent.explain(name).incarnation != note.incarnation:
            raise Refused(f"{note.peer} has brought the metadata of {name}")
        if message.get("version") != wire.VERSION:
            raise Refused(
                f"decode speaks version {message.get('version')}, prefill {wire.VERSION}: install "
                "the same kvxfer on both sides"
            )
        if len(self._known) >= _MAX:
            self._forget(time.monotonic(), busy)
        if len(self._known) >= _MAX:
            raise Refused(f"prefill knows {_MAX} ranks of decode already")
        layout = from_message(message.get("layout"))
        check_offered(self._agent, name, layout)
        model = self._model
        self._known[name] = _Decoder(
            plan_of(self._layout, layout, model.heads, model.hybrid_mla, model.swa_layout)
        )

    def _forget(self, before: float, busy: set[str]) -> None:
        for name, known in list(self._known.items()):
            if not 0.0 < known.lost < before or name in busy:
                continue
            del self._known[name]
            with contextlib.suppress(kvxfer.NotFound):
                self._agent.remove_peer(name)

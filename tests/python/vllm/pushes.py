"""What a proxy asks both engines for so that prefill writes."""

import uuid
from collections.abc import Mapping
from typing import Any

from conversation import Conversation
from engine import Request, Transfer

PUSH = {"do_remote_decode": True, "do_remote_prefill": False, "kvxfer": {"mode": "push"}}
"""Of prefill, for a push that begins when decode has its reference."""


def known_of(transfer: Transfer) -> dict[str, Any]:
    """What a proxy remembers of a reference, to tell decode who prefills."""
    reference = transfer["kvxfer"]
    names = ("version", "workers", "tp", "layers", "engine", "fingerprint")
    return {name: reference[name] for name in names}


def beside(talk: Conversation, name: str, known: Mapping[str, Any]) -> tuple[Request, Request]:
    """For prefill and for decode at once; prefill's has the name with "-p"."""
    transfer = uuid.uuid4().hex
    wish = {"do_remote_decode": True, "do_remote_prefill": False, "kvxfer": {"transfer": transfer}}
    room = {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "kvxfer": {**known, "mode": "push", "transfer": transfer},
    }
    return Request(talk.prompts[name], 1, wish, f"{name}-p"), talk.request(name, room)


def prefill_to_push(talk: Conversation, *names: str) -> dict[str, Transfer]:
    """As Conversation.prefill()."""
    asked = [Request(talk.prompts[name], 1, PUSH, name) for name in names]
    return {each.name: each.transfer or {} for each in talk.pair.prefill.generate(*asked)}

"""What the tests with vLLM's own schedulers know of KvxferConnector's scheduler half: what a proxy says
to it, what is in a step, what is left over. What its workers do is in fake_workers."""

import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kvxfer.vllm.connector  # whose modules Clock has to find
from kvxfer.vllm.reference import KEY
from kvxfer.vllm.step import Step
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
    MultiKVConnectorWorkerMetadata,
)
from vllm.v1.outputs import KVConnectorOutput

MODES = ("pull", "push", "beside")
"""How a request comes over: decode reads, prefill writes when decode has its reference, prefill writes while
it computes."""


_OF_MULTI = ("_requests_to_connector", "_extra_async_saves")


def wish(mode: str, transfer: str = "") -> dict[str, Any]:
    """kv_transfer_params of a request that is prefilled for another engine."""
    asked: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
    if mode == "push":
        asked[KEY] = {"mode": "push"}
    if mode == "beside":
        asked[KEY] = {"transfer": transfer}
    return asked


def beside(reference: dict[str, Any], transfer: str) -> dict[str, Any]:
    """Those of a request whose prefill has just been asked for, by an earlier answer of that engine."""
    names = ("version", "workers", "tp", "layers", "engine", "fingerprint")
    known = {name: reference[KEY][name] for name in names}
    return {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        KEY: known | {"mode": "push", "transfer": transfer},
    }


def altered(reference: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return reference | {KEY: reference[KEY] | fields}


def without(reference: dict[str, Any], field_name: str) -> dict[str, Any]:
    return reference | {KEY: {k: v for k, v in reference[KEY].items() if k != field_name}}


def our_part(connector: Any) -> int | None:
    """Of a MultiConnector, which of its connectors is KvxferConnector; None: it is one itself."""
    parts = getattr(connector, "_connectors", None)
    if parts is None:
        return None
    return next(at for at, part in enumerate(parts) if type(part).__name__ == "KvxferConnector")


def own_step(step: Any, part: int | None) -> Step:
    found = step if part is None else step.metadata[part]
    assert isinstance(found, Step)
    return found


def as_said(output: KVConnectorOutput, part: int | None) -> KVConnectorOutput:
    """As the worker's half of the whole connector says what that of KvxferConnector has said."""
    if part is not None and output.kv_connector_worker_meta is not None:
        others = (None,) * part
        own = (*others, output.kv_connector_worker_meta, None)[:2]
        output.kv_connector_worker_meta = MultiKVConnectorWorkerMetadata(own)
    return output


def leftovers(connector: Any) -> dict[str, Any]:
    """What the scheduler's half of a connector still knows of requests; not what it remembers of the last
    thousands."""
    part_number = our_part(connector)
    found: dict[str, Any] = {}
    if part_number is not None:
        found |= {
            name: value for name, value in vars(connector).items() if name in _OF_MULTI and value
        }
        connector = connector._connectors[part_number]
    side = connector._scheduler
    for part in (side._decode, side._prefill):
        for name, value in vars(part).items():
            if isinstance(value, dict | set) and not isinstance(value, OrderedDict) and value:
                found[f"{type(part).__name__}.{name}"] = value
    if side.has_work():
        found["has_work"] = True
    return found


@dataclass
class Clock:
    """In place of the module ``time``, for all that is looked at here: it can be set on."""

    ahead: float = 0.0
    _monotonic: Callable[[], float] = time.monotonic

    def monotonic(self) -> float:
        return self._monotonic() + self.ahead

    @staticmethod
    def modules() -> list[Any]:
        """That go by the time."""
        names = [
            name
            for name in sys.modules
            if name.startswith("kvxfer.vllm.") or name == "fake_workers"
        ]
        return [sys.modules[name] for name in names if hasattr(sys.modules[name], "time")]

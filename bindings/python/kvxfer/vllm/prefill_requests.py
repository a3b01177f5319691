"""The scheduler's half, prefill: requests that are computed for another engine, until nobody reads
their blocks any more."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from kvxfer.vllm.blocks import BlockTable
from kvxfer.vllm.reference import (
    KEY,
    GroupBlocks,
    Reference,
    Worker,
    contents_of,
    is_name,
    prompt_hash,
)
from kvxfer.vllm.step import Abandoned, Expected, Heard, Held, Step, Write

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from kvxfer.vllm.fingerprint import Fingerprint
    from kvxfer.vllm.settings import Settings

_MAX_EXPECTED = 8192
_NOT_ADMITTED = "the prefill engine's vLLM refused the request before it was admitted"


@dataclass
class _Push:
    """A request whose blocks this engine writes to a decode engine."""

    request: Request
    lease: str
    sent: int = 0  # tokens
    writes: int = 0
    offers: int = 0  # workers that have the offer of decode
    abandoned: bool = False
    finished: int | None = None  # tokens, once all are computed
    blocks: tuple[GroupBlocks, ...] = ()  # then
    until: float = 0.0


class PrefillRequests:
    """As DecodeRequests."""

    def __init__(
        self,
        settings: Settings,
        engine: str,
        table: BlockTable,
        fingerprint: Fingerprint,
        ranks: int,
        can_push: bool,
    ) -> None:
        self.step = Step()
        self.workers: tuple[Worker, ...] = ()
        self.cache_manager: KVCacheManager | None = None
        self._settings = settings
        self._engine = engine
        self._table = table
        self._fingerprint = fingerprint
        self._ranks = ranks
        self._can_push = can_push
        self._pushes: dict[str, _Push] = {}  # by request
        self._expected: OrderedDict[str, None] = OrderedDict()  # leases of pushes, lately

    def expect(self, request: Request, params: dict[str, Any]) -> None:
        if getattr(request, "abort_immediately", False):
            self._refuse_push(request, params)
            return
        self._shorten(request, params)
        transfer = self._push_transfer(params)
        if transfer is not None:
            self._expect_push(request, transfer)

    def _shorten(self, request: Request, params: dict[str, Any]) -> None:
        if not self._table.leaves_last_to_decode(request.num_prompt_tokens):
            return
        if params.get("_kvxfer_shortened"):
            return
        if request.get_skip_reading_prefix_cache():
            return  # decode loads nothing of it
        if request.prompt_token_ids is None or request.num_tokens != request.num_prompt_tokens:
            return
        params["_kvxfer_shortened"] = True
        del request.prompt_token_ids[-1:]
        del request._all_token_ids[-1:]
        request.num_prompt_tokens -= 1
        request.max_tokens = 1

    def _refuse_push(self, request: Request, params: dict[str, Any]) -> None:
        """vLLM has refused the request, and says so by one that stands for it, with another prompt. A
        decode engine that makes room for it must not wait."""
        lease = _named_transfer(params)
        if self._can_push and lease is not None and lease not in self._expected:
            self._remember(lease)
            self.step.abandoned.append(Abandoned(request.request_id, lease, _NOT_ADMITTED, False))

    def _push_transfer(self, params: dict[str, Any]) -> str | None:
        """The name that the proxy has given the transfer, of a push that begins at once; one of our
        own where it, or this engine, pushes; None: decode reads."""
        if not self._can_push:
            return None
        named = _named_transfer(params)
        if named is not None:
            return named
        mode = _wish(params).get("mode", self._settings.mode)
        return secrets.token_hex(12) if mode == "push" else None

    def _expect_push(self, request: Request, transfer: str) -> None:
        lease = transfer
        if lease in self._expected:  # asked for twice: the first one it is
            lease = secrets.token_hex(12)
        self._remember(lease)
        self._pushes[request.request_id] = _Push(request, lease)
        contents = contents_of(prompt_hash(request, request.num_prompt_tokens))
        self.step.expected.append(Expected(lease, contents))

    def _remember(self, lease: str) -> None:
        self._expected[lease] = None
        if len(self._expected) > _MAX_EXPECTED:
            self._expected.popitem(last=False)

    def is_pushed(self, request: Request) -> bool:
        """Whether it is known as one whose blocks are written to decode."""
        return request.request_id in self._pushes

    def finished(
        self, request: Request, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As KVConnectorBase_V1.request_finished, of a request that was expected."""
        whole = request.status in (
            RequestStatus.FINISHED_LENGTH_CAPPED,
            RequestStatus.FINISHED_STOPPED,
        )
        push = self._pushes.get(request.request_id)
        if push is not None:
            return self._finish_push(push, block_ids if whole else None)
        if not whole or not self.workers:
            return False, None
        tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        groups = self._table.held(block_ids, tokens)
        transfer = secrets.token_hex(12)
        contents = contents_of(
            prompt_hash(request, tokens), groups, self._table.kernel_block_tokens
        )
        self.step.held.append(Held(request.request_id, transfer, contents, groups))
        return True, self._refer("pull", transfer, tokens, groups)

    def _refer(
        self, mode: str, transfer: str, tokens: int, groups: tuple[GroupBlocks, ...]
    ) -> dict[str, Any]:
        reference = Reference(
            mode=mode,
            engine=self._engine,
            transfer=transfer,
            tokens=tokens,
            fingerprint=self._fingerprint.text,
            workers=self.workers,
            groups=groups if mode == "pull" else (),
            block_tokens=tuple(self._table.kernel_block_tokens) if mode == "pull" else (),
            lease=self._settings.lease,
        )
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self._engine,
            KEY: reference.to_params(),
        }

    # --- pushing ---

    def _finish_push(
        self, push: _Push, block_ids: Sequence[Sequence[int]] | None
    ) -> tuple[bool, dict[str, Any] | None]:
        """``block_ids``: None where the request did not become whole."""
        request = push.request
        if block_ids is None or push.abandoned:
            held = push.writes > 0
            self._abandon(push, f"the prefill engine ended it: {request.status.name}", held)
            del self._pushes[request.request_id]
            return held, None
        push.finished = min(request.num_computed_tokens, request.num_prompt_tokens)
        push.blocks = self._table.held(block_ids, push.finished)
        push.until = time.monotonic() + self._settings.lease
        return True, self._refer("push", push.lease, push.finished, push.blocks)

    def _write(
        self, push: _Push, last: int, groups: tuple[GroupBlocks, ...], computing: bool
    ) -> None:
        final = push.finished is not None
        request = push.request.request_id
        self.step.writes.append(
            Write(request, push.lease, push.writes, groups, push.sent, last, computing, final)
        )
        push.sent = last
        push.writes += 1
        if final:
            del self._pushes[request]

    def _abandon(self, push: _Push, why: str, held: bool) -> None:
        push.abandoned = True
        self.step.abandoned.append(Abandoned(push.request.request_id, push.lease, why, held))

    def push_on(self, output: SchedulerOutput) -> None:
        """What this step computes of requests that decode has made room for; and what was computed
        before it had."""
        for push in list(self._pushes.values()):
            offered = push.offers >= self._ranks and not push.abandoned
            if push.finished is None:
                scheduled = output.num_scheduled_tokens.get(push.request.request_id, 0)
                if offered and scheduled:
                    self._push_computed(push, scheduled)
            elif offered:
                self._write(push, push.finished, push.blocks, computing=False)
            elif push.abandoned or time.monotonic() > push.until:
                self._abandon(push, "no decode engine asked for it in time", held=True)
                del self._pushes[push.request.request_id]

    def _push_computed(self, push: _Push, scheduled: int) -> None:
        request = push.request
        last = min(request.num_computed_tokens + scheduled, request.num_prompt_tokens)
        if last < request.num_prompt_tokens:  # whole blocks: none is written twice
            last -= last % max(group.block_tokens for group in self._table.groups)
        if last <= push.sent or self.cache_manager is None:
            return
        ids = self.cache_manager.get_block_ids(request.request_id)
        self._write(push, last, self._table.held(ids, last), computing=True)

    def hear(self, heard: Heard) -> None:
        for push in list(self._pushes.values()):
            push.offers += heard.offered.get(push.lease, 0)
            if push.lease in heard.renewed and push.finished is not None:
                push.until = time.monotonic() + self._settings.lease
            if push.lease in heard.withdrawn and not push.abandoned:
                self._abandon(push, "the decode engine wants it no more", held=False)

    def is_pushing(self) -> bool:
        return bool(self._pushes)


def _wish(params: dict[str, Any]) -> dict[str, Any]:
    wish = params.get(KEY)
    return wish if isinstance(wish, dict) else {}


def _named_transfer(params: dict[str, Any]) -> str | None:
    transfer = _wish(params).get("transfer")
    return str(transfer) if is_name(transfer) else None

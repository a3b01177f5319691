"""The scheduler's half, prefill: requests that are computed for another engine, until nobody reads
their blocks any more."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from kvxfer.vllm.blocks import BlockTable
from kvxfer.vllm.division import Division
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
_RESET = "the prefill engine's caches were reset, as for new weights"
_NOT_ADMITTED = "the prefill engine's vLLM refused the request before it was admitted"


class Purpose(Enum):
    """What the blocks of a request that has ended are kept for."""

    NONE = auto()
    DECODE = auto()
    NEXT_TURN = auto()
    """Of a conversation: the answer is a part of the next prompt."""


@dataclass
class _Pull:
    """A request whose blocks decode will read."""

    request: Request
    held: Held | None = None
    """From the step that computes its last token on."""


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
        can_push: bool,
        speculates: bool,
    ) -> None:
        self._speculates = speculates
        self.step = Step()
        self.workers: tuple[Worker, ...] = ()
        self.division: Division | None = None
        self.cache_manager: KVCacheManager | None = None
        self._settings = settings
        self._engine = engine
        self._table = table
        self._fingerprint = fingerprint
        self._can_push = can_push
        self._pulls: dict[str, _Pull] = {}  # by request
        # Requests that have ended and keep their blocks until nobody reads them, and their leases.
        self._handed_on: dict[str, tuple[Request, str]] = {}
        self._pushes: dict[str, _Push] = {}  # by request
        # Answers to one prompt (n), which all get the reference of the first one that ends: a response
        # carries one. By what their names have in common; empty as long as there is none.
        self._references: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._expected: OrderedDict[str, None] = OrderedDict()  # leases of pushes, lately

    def expect(self, request: Request, params: dict[str, Any]) -> None:
        if getattr(request, "abort_immediately", False):
            self._refuse_push(request, params)
            return
        self._shorten(request, params)
        transfer = self._push_transfer(params)
        if transfer is not None:
            if self._is_first(request):
                self._expect_push(request, transfer)
        else:
            self._pulls[request.request_id] = _Pull(request)

    def _is_first(self, request: Request) -> bool:
        """Of the answers to its prompt; the others are not written to decode."""
        family = _family(request)
        if family in self._references:
            return False
        if family:
            self._references[family] = {}
            if len(self._references) > _MAX_EXPECTED:
                self._references.popitem(last=False)
        return True

    def _shorten(self, request: Request, params: dict[str, Any]) -> None:
        left = self._table.left_to_decode(request.num_prompt_tokens)
        if not left:
            return
        if request.get_skip_reading_prefix_cache():
            return  # decode loads nothing of it
        if request.num_tokens != request.num_prompt_tokens:
            return
        if request.prompt_token_ids is not None:
            del request.prompt_token_ids[-left:]
        elif request.prompt_embeds is not None:
            request.prompt_embeds = request.prompt_embeds[:-left]
        else:
            return
        del request._all_token_ids[-left:]
        request.num_prompt_tokens -= left
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
        if params.get("do_remote_prefill"):  # then there is a reference in the place of a wish
            return secrets.token_hex(12) if self._settings.mode == "push" else None
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

    def finished(
        self, request: Request, block_ids: Sequence[Sequence[int]], purpose: Purpose
    ) -> tuple[bool, dict[str, Any] | None]:
        """As KVConnectorBase_V1.request_finished."""
        whole = request.status in (
            RequestStatus.FINISHED_LENGTH_CAPPED,
            RequestStatus.FINISHED_STOPPED,
        )
        push = self._pushes.get(request.request_id)
        if push is not None:
            held, params = self._finish_push(push, block_ids if whole else None)
            self._remember_reference(request, params)
            return held, params
        pull = self._pulls.pop(request.request_id, None)
        known = self._references.get(_family(request)) if purpose is Purpose.DECODE else None
        tokens = self._kept_tokens(request, purpose)
        if not whole or not tokens or not self.workers or known is not None:
            self._drop(pull)
            return False, known or None
        groups = self._table.held(block_ids, tokens)
        held = pull.held if pull is not None else None
        if held is not None and held.groups == groups:
            self.step.confirmed.append(held.lease)
        else:
            self._drop(pull)
            held = self._hold(request, tokens, groups, confirmed=True)
        self._handed_on[request.request_id] = request, held.lease
        params = self._refer("pull", held.lease, tokens, groups)
        if purpose is Purpose.DECODE:
            self._remember_reference(request, params)
        return True, params

    def _kept_tokens(self, request: Request, purpose: Purpose) -> int:
        """0: none are of use to anybody."""
        match purpose:
            case Purpose.NONE:
                return 0
            case Purpose.DECODE:
                tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
            case Purpose.NEXT_TURN:
                # The last token of an answer was never computed from.
                tokens = min(request.num_computed_tokens, request.num_tokens - 1)
                if request.prompt_token_ids is None or (
                    # Which of the states of drafts is the right one vLLM knows in its next step.
                    self._table.has_state() and self._speculates
                ):
                    return 0
        # A state is of all tokens that were computed, and a step that was begun before the end was known
        # may have gone beyond it.
        exact = request.num_computed_tokens == tokens or not self._table.has_state()
        return tokens if exact else 0

    def _remember_reference(self, request: Request, params: dict[str, Any] | None) -> None:
        family = _family(request)
        if family and params is not None:
            self._references[family] = params
            if len(self._references) > _MAX_EXPECTED:
                self._references.popitem(last=False)

    def _hold(
        self, request: Request, tokens: int, groups: tuple[GroupBlocks, ...], confirmed: bool = False
    ) -> Held:
        contents = contents_of(
            prompt_hash(request, tokens), groups, self._table.kernel_block_tokens
        )
        held = Held(request.request_id, secrets.token_hex(12), contents, groups, confirmed)
        self.step.held.append(held)
        return held

    def _drop(self, pull: _Pull | None) -> None:
        """Its lease; nobody has heard of it."""
        if pull is not None and pull.held is not None:
            self.step.dropped.append(pull.held.lease)
            pull.held = None

    def hold_on(self, output: SchedulerOutput) -> None:
        """Leases of what this step computes to the end: they are there when the step is, before decode
        hears of the request. A request that goes on computing is held when it has ended."""
        for preempted in output.preempted_req_ids or ():
            self._drop(self._pulls.get(preempted))
        if self.cache_manager is None or not self._pulls:
            return
        for name, scheduled in output.num_scheduled_tokens.items():
            pull = self._pulls.get(name)
            if pull is None or pull.held is not None or pull.request.max_tokens != 1:
                continue
            tokens = pull.request.num_prompt_tokens
            if pull.request.num_computed_tokens + scheduled >= tokens:
                ids = self.cache_manager.get_block_ids(name)
                pull.held = self._hold(pull.request, tokens, self._table.held(ids, tokens))

    def _refer(
        self, mode: str, transfer: str, tokens: int, groups: tuple[GroupBlocks, ...]
    ) -> dict[str, Any]:
        assert self.division is not None
        reference = Reference(
            mode=mode,
            engine=self._engine,
            transfer=transfer,
            tokens=tokens,
            fingerprint=self._fingerprint.hashes,
            workers=self.workers,
            division=self.division,
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
            self._handed_on[request] = push.request, push.lease

    def _abandon(self, push: _Push, why: str, held: bool) -> None:
        push.abandoned = True
        self.step.abandoned.append(Abandoned(push.request.request_id, push.lease, why, held))

    def push_on(self, output: SchedulerOutput) -> None:
        """What this step computes of requests that decode has made room for; and what was computed
        before it had."""
        for push in list(self._pushes.values()):
            offered = push.offers >= self._writers() and not push.abandoned
            if push.finished is None:
                scheduled = output.num_scheduled_tokens.get(push.request.request_id, 0)
                if offered and scheduled:
                    self._push_computed(push, scheduled)
            elif offered:
                self._write(push, push.finished, push.blocks, computing=False)
            elif push.abandoned or time.monotonic() > push.until:
                self._abandon(push, "no decode engine asked for it in time", held=True)
                del self._pushes[push.request.request_id]

    def _writers(self) -> int:
        """Workers that decode makes an offer to."""
        return self.division.workers_with_layers if self.division is not None else len(self.workers)

    def _push_computed(self, push: _Push, scheduled: int) -> None:
        request = push.request
        last = min(request.num_computed_tokens + scheduled, request.num_prompt_tokens)
        if last < request.num_prompt_tokens:  # whole blocks: none is written twice
            last -= last % self._table.largest_block()
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

    def hear_ended(self, requests: Iterable[str]) -> None:
        """Whose blocks nobody reads any more."""
        for request in requests:
            self._handed_on.pop(request, None)

    def kept_blocks(self) -> set[int]:
        """Of requests that have ended."""
        ended = [*self._handed_on]
        ended += [name for name, push in self._pushes.items() if push.finished is not None]
        return {each for name in ended for each in self._blocks_of(name)}

    def _blocks_of(self, request: str) -> list[int]:
        if self.cache_manager is None:
            return []
        return [each for group in self.cache_manager.get_block_ids(request) for each in group]

    def let_go_of_all(self) -> None:
        """What is kept for decode is free at once. Nothing is written into those blocks before the
        workers have revoked their leases: after that, whoever reads them is refused. What is being
        written to decode ends first, as for a preemption."""
        for name, (request, lease) in self._handed_on.items():
            self.step.revoked.append(lease)
            self.step.preempted.append(name)
            self._free(request)
        self._handed_on.clear()
        self._references.clear()
        for pull in self._pulls.values():
            self._drop(pull)
        for push in list(self._pushes.values()):
            if push.finished is None and push.writes == 0:
                continue  # all of it is computed anew
            name = push.request.request_id
            self.step.preempted.append(name)
            if push.finished is not None:
                self._abandon(push, _RESET, held=True)
                self._free(push.request)
                del self._pushes[name]
            elif not push.abandoned:
                self._abandon(push, _RESET, held=False)

    def _free(self, request: Request) -> None:
        """Its blocks. vLLM, which frees them when it hears that they are not read, then finds none. Where a
        step that is under way may still write into them, that is when they are free."""
        if self.cache_manager is not None and not getattr(request, "num_in_flight_tokens", 0):
            self.cache_manager.free(request)

    def is_pushing(self) -> bool:
        return bool(self._pushes)


def _wish(params: dict[str, Any]) -> dict[str, Any]:
    wish = params.get(KEY)
    return wish if isinstance(wish, dict) else {}


def _named_transfer(params: dict[str, Any]) -> str | None:
    transfer = _wish(params).get("transfer")
    return str(transfer) if is_name(transfer) else None


def _family(request: Request) -> str:
    """What vLLM's names of several answers to one prompt have in common; empty: it is the only one."""
    number, _, parent = request.request_id.partition("_")
    return parent if number.isdecimal() else ""

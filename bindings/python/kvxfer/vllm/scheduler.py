"""The scheduler's half: which requests load from another engine, which blocks are kept for one, and
what the workers are told of it in each step. It does no I/O."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from kvxfer.vllm.caches import Group
from kvxfer.vllm.log import logger
from kvxfer.vllm.reference import (
    KEY,
    BadReference,
    GroupBlocks,
    Reference,
    Worker,
    is_name,
    lease_name,
    prompt_hash,
)
from kvxfer.vllm.step import (
    Abandoned,
    Fetch,
    Heard,
    Held,
    Offer,
    Part,
    Step,
    WorkerAddress,
    Write,
)

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from kvxfer.vllm.fingerprint import Fingerprint
    from kvxfer.vllm.settings import Settings

_MAX_EXPECTED = 8192
_NULL_BLOCK = 0  # of vLLM's block pool: a block that has left a sliding window


@dataclass
class _Load:
    """Decode: a request that comes with a reference, until it is loaded or given up."""

    reference: Reference
    lease: str
    renewed: float = field(default_factory=time.monotonic)
    computed: int = 0  # tokens that are here already, when it was last asked
    begun: bool = False


@dataclass
class _Room:
    """Decode: blocks that were offered to a prefill engine, until it writes no more into them."""

    blocks: list[KVCacheBlock]
    unsettled: int = 0  # workers that have ended the request without knowing that
    kept: bool = False  # for them, while the request may be done without these blocks


@dataclass
class _Push:
    """Prefill: a request whose blocks this engine writes to a decode engine."""

    request: Request
    lease: str
    sent: int = 0  # tokens
    writes: int = 0
    offers: int = 0  # workers that have the offer of decode
    abandoned: bool = False
    finished: int | None = None  # tokens, once all are computed
    blocks: tuple[GroupBlocks, ...] = ()  # then
    until: float = 0.0


class SchedulerSide:
    def __init__(
        self,
        settings: Settings,
        engine: str,
        groups: list[Group],
        group_ids: Sequence[int],
        fingerprint: Fingerprint,
        ranks: int,
        fails: bool,
        can_push: bool,
    ) -> None:
        """``fails``: a request that cannot be loaded is to fail, not to be computed here."""
        self._can_push = can_push
        self._settings = settings
        self._engine = engine
        self._groups = groups
        self._group_ids = group_ids
        self._fingerprint = fingerprint
        self._ranks = ranks
        self._workers: tuple[Worker, ...] = ()
        self._kernel_block_tokens = [group.block_tokens for group in groups]
        self._cache_manager: KVCacheManager | None = None
        self._block_pool: BlockPool | None = None
        self._fails = fails
        self._loads: dict[str, _Load] = {}
        self._rooms: dict[str, _Room] = {}  # by request
        self._refused: dict[str, str] = {}  # not yet told to the workers
        self._pushes: dict[str, _Push] = {}  # by request
        self._step = Step()
        self._expected: OrderedDict[str, None] = OrderedDict()  # leases of pushes, lately

    def use_cache_manager(self, manager: KVCacheManager) -> None:
        self._cache_manager = manager

    def use_block_pool(self, pool: BlockPool) -> None:
        self._block_pool = pool

    def use_workers(self, addresses: Mapping[tuple[int, int], Any]) -> None:
        ordered = [addresses[key] for key in sorted(addresses)]
        if len(ordered) != self._ranks or not all(isinstance(a, WorkerAddress) for a in ordered):
            found = ", ".join(sorted({type(each).__name__ for each in ordered}))
            raise ValueError(
                f"KvxferConnector: its {self._ranks} workers gave {len(ordered)} addresses ({found}); "
                "in a MultiConnector it has to be the first that gives any"
            )
        self._workers = tuple(address.worker for address in ordered)
        self._kernel_block_tokens = ordered[0].kernel_block_tokens

    # --- a request comes ---

    def on_new_request(self, request: Request) -> None:
        params = request.kv_transfer_params
        if not params:
            return
        if params.get("do_remote_decode"):
            self._shorten(request)
            transfer = self._push_transfer(params)
            if transfer is not None:
                self._expect_push(request, transfer)
        elif params.get("do_remote_prefill"):
            self._expect_load(request, params)

    def _expect_load(self, request: Request, params: dict[str, Any]) -> None:
        try:
            reference = self._read(params.get(KEY), request)
        except BadReference as error:
            logger.warning("kvxfer: request %s: %s", request.request_id, error)
            if self._fails:
                self._refused[request.request_id] = str(error)
            return
        tokens = reference.tokens or self._pushed_tokens(request)
        lease = lease_name(
            reference.transfer,
            prompt_hash(request, tokens),
            reference.groups,
            reference.block_tokens,
        )
        self._loads[request.request_id] = _Load(reference, lease)

    def _read(self, params: Any, request: Request) -> Reference:
        fingerprint = params.get("fingerprint") if isinstance(params, dict) else None
        if isinstance(fingerprint, str):
            why = self._fingerprint.differs(fingerprint[:200])
            if why:
                raise BadReference(why)
        reference = Reference.from_params(params, request.num_prompt_tokens)
        if reference.groups and len(reference.groups) != len(self._groups):
            raise BadReference(
                f"the reference has {len(reference.groups)} groups of blocks, this model "
                f"{len(self._groups)}"
            )
        if reference.mode == "pull" and (not reference.groups or reference.tokens == 0):
            raise BadReference("the reference names no blocks to be read")
        return reference

    def matched_tokens(self, request: Request, computed: int) -> int:
        """How many tokens beyond ``computed`` are to be had from the other engine."""
        if request.request_id in self._refused:
            # Goes through the motions of a load, which then fails.
            return max(0, request.num_prompt_tokens - computed)
        load = self._loads.get(request.request_id)
        if load is None or load.begun:
            return 0
        load.computed = computed
        return max(0, self._loadable(load, request) - computed)

    def _loadable(self, load: _Load, request: Request) -> int:
        tokens = load.reference.tokens or request.num_prompt_tokens
        # The last token is computed in any case. With a sliding window it needs a block that an
        # allocation for all tokens would leave out.
        return min(tokens, request.num_prompt_tokens - 1) if self._has_window() else tokens

    # --- blocks for it are there ---

    def after_allocation(self, request: Request, blocks: KVCacheBlocks, external: int) -> None:
        refused = self._refused.pop(request.request_id, None)
        if refused is not None and external > 0:
            self._step.refused[request.request_id] = refused
        load = self._loads.get(request.request_id)
        if load is None or load.begun:
            return
        load.begun = True
        if external <= 0:
            del self._loads[request.request_id]
            self._step.returned.append((load.lease, load.reference))
            return
        last = load.computed + external  # vLLM may have taken less than was to be had
        try:
            parts = self._parts(blocks.get_block_ids(), load.computed, last)
            if load.reference.mode == "pull":
                self._check_window(load.reference, parts)
        except BadReference as error:
            logger.warning("kvxfer: request %s: %s", request.request_id, error)
            self._step.refused[request.request_id] = str(error)
            self._step.returned.append((load.lease, load.reference))
            return
        if load.reference.mode == "pull":
            self._step.fetches.append(
                Fetch(request.request_id, load.lease, load.reference, parts)
            )
        else:
            offered = [each for group in blocks.blocks for each in group if not each.is_null]
            self._rooms[request.request_id] = _Room(offered)
            self._step.offers.append(
                Offer(
                    request.request_id,
                    load.lease,
                    load.reference,
                    parts,
                    self._workers,
                    tuple(self._kernel_block_tokens),
                )
            )

    def _parts(self, ids: Sequence[Sequence[int]], first: int, last: int) -> tuple[Part, ...]:
        parts = []
        for index, (group, group_ids) in enumerate(zip(self._groups, self._of_groups(ids), strict=True)):
            begin = first
            if group.window:
                # Whole blocks: a block that is half here would be taken for a whole one later.
                begin = max(first, self._window_begin(group, last))
            blocks = self._kernel_blocks(index, group_ids, begin // group.block_tokens)
            parts.append(Part(blocks, begin, last))
        return tuple(parts)

    @staticmethod
    def _window_begin(group: Group, tokens: int) -> int:
        """The begin of the block with the first token that token number ``tokens`` looks at."""
        first = max(0, tokens - group.window + 1)
        return first - first % group.block_tokens

    def _check_window(self, reference: Reference, parts: Sequence[Part]) -> None:
        for part, theirs, tokens in zip(
            parts, reference.groups, reference.block_tokens, strict=True
        ):
            if part.first < theirs.first_block * tokens and part.first < part.last:
                raise BadReference(
                    "the prefill engine has freed a block that this one needs of a sliding window: "
                    "give both the same --block-size"
                )

    def _kernel_blocks(self, index: int, ids: Sequence[int], first_block: int) -> GroupBlocks:
        """From the scheduler's blocks to those of the kernels, where these are smaller."""
        ratio = self._groups[index].block_tokens // self._kernel_block_tokens[index]
        kept = ids[first_block:]
        if ratio == 1:
            return GroupBlocks(first_block, tuple(kept))
        return GroupBlocks(
            first_block * ratio, tuple(block * ratio + k for block in kept for k in range(ratio))
        )

    def _of_groups(self, ids: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        return [ids[group] for group in self._group_ids]

    def _has_window(self) -> bool:
        return any(group.window for group in self._groups)

    # --- prefill: a request is computed ---

    def _shorten(self, request: Request) -> None:
        """The last token is left to decode, which computes it in any case."""
        params = request.kv_transfer_params
        assert params is not None
        if not self._is_shortened(request) or params.get("_kvxfer_shortened"):
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

    def _is_shortened(self, request: Request) -> bool:
        """Were all tokens computed here, the block with the first token that the last one looks at
        would just have left a sliding window, and be freed."""
        tokens = request.num_prompt_tokens
        return tokens > 1 and any(
            group.window > 0
            and tokens >= group.window
            and (tokens - group.window + 1) % group.block_tokens == 0
            for group in self._groups
        )

    def _pushed_tokens(self, request: Request) -> int:
        """What the prefill engine computes of a prompt, where it could not say so yet."""
        return request.num_prompt_tokens - (1 if self._is_shortened(request) else 0)

    def _push_transfer(self, params: dict[str, Any]) -> str | None:
        """The name that the proxy has given the transfer, of a push that begins at once; one of our
        own where it, or this engine, pushes; None: decode reads."""
        wish = params.get(KEY)
        wish = wish if isinstance(wish, dict) else {}
        if not self._can_push:
            return None
        if is_name(wish.get("transfer")):
            return str(wish["transfer"])
        mode = wish.get("mode", self._settings.mode)
        return secrets.token_hex(12) if mode == "push" else None

    def _expect_push(self, request: Request, transfer: str) -> None:
        hashed = prompt_hash(request, request.num_prompt_tokens)
        lease = lease_name(transfer, hashed)
        if lease in self._expected:  # asked for twice: the first one it is
            lease = lease_name(secrets.token_hex(12), hashed)
        self._expected[lease] = None
        if len(self._expected) > _MAX_EXPECTED:
            self._expected.popitem(last=False)
        self._pushes[request.request_id] = _Push(request, lease)
        self._step.expected.append(lease)

    def request_finished(
        self, request: Request, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        load = self._loads.pop(request.request_id, None)
        if self._refused.pop(request.request_id, None) is not None or load is not None:
            self._give_up(request, load)
            return False, None
        params = request.kv_transfer_params
        if not params or not params.get("do_remote_decode"):
            return False, None
        whole = request.status in (
            RequestStatus.FINISHED_LENGTH_CAPPED,
            RequestStatus.FINISHED_STOPPED,
        )
        push = self._pushes.get(request.request_id)
        if push is not None:
            return self._finish_push(push, block_ids if whole else None)
        if not whole or not self._workers:
            return False, None
        tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        groups = self._held_groups(block_ids, tokens)
        transfer = secrets.token_hex(12)
        lease = lease_name(
            transfer, prompt_hash(request, tokens), groups, self._kernel_block_tokens
        )
        self._step.held.append(Held(request.request_id, lease, groups))
        return True, self._refer("pull", transfer, tokens, groups)

    def _held_groups(
        self, block_ids: Sequence[Sequence[int]], tokens: int
    ) -> tuple[GroupBlocks, ...]:
        found = []
        for index, (group, ids) in enumerate(
            zip(self._groups, self._of_groups(block_ids), strict=True)
        ):
            used = list(ids[: -(-tokens // group.block_tokens)])
            first = next((k for k, block in enumerate(used) if block != _NULL_BLOCK), len(used))
            found.append(self._kernel_blocks(index, used, first))
        return tuple(found)

    def _refer(
        self, mode: str, transfer: str, tokens: int, groups: tuple[GroupBlocks, ...]
    ) -> dict[str, Any]:
        reference = Reference(
            mode=mode,
            engine=self._engine,
            transfer=transfer,
            tokens=tokens,
            fingerprint=self._fingerprint.text,
            workers=self._workers,
            groups=groups if mode == "pull" else (),
            block_tokens=tuple(self._kernel_block_tokens) if mode == "pull" else (),
            lease=self._settings.lease,
        )
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self._engine,
            KEY: reference.to_params(),
        }

    def _give_up(self, request: Request, load: _Load | None) -> None:
        """An aborted load: what was begun ends as the workers say; what was not is given back."""
        if load is None:
            return
        if load.begun:
            self._step.given_up.append(request.request_id)
        else:
            self._step.returned.append((load.lease, load.reference))

    # --- prefill: pushing ---

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
        push.blocks = self._held_groups(block_ids, push.finished)
        push.until = time.monotonic() + self._settings.lease
        transfer = push.lease.rsplit(":", 2)[0]
        return True, self._refer("push", transfer, push.finished, push.blocks)

    def _write(
        self, push: _Push, last: int, groups: tuple[GroupBlocks, ...], computing: bool
    ) -> None:
        final = push.finished is not None
        request = push.request.request_id
        self._step.writes.append(
            Write(request, push.lease, push.writes, groups, push.sent, last, computing, final)
        )
        push.sent = last
        push.writes += 1
        if final:
            del self._pushes[request]

    def _abandon(self, push: _Push, why: str, held: bool) -> None:
        push.abandoned = True
        self._step.abandoned.append(Abandoned(push.request.request_id, push.lease, why, held))

    def _push_on(self, output: SchedulerOutput) -> None:
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
            last -= last % max(group.block_tokens for group in self._groups)
        if last <= push.sent or self._cache_manager is None:
            return
        ids = self._cache_manager.get_block_ids(request.request_id)
        self._write(push, last, self._held_groups(ids, last), computing=True)

    # --- each step ---

    def build(self, output: SchedulerOutput) -> Step:
        self._push_on(output)
        self._want()
        self._step.preempted = sorted(output.preempted_req_ids or ())
        step, self._step = self._step, Step()
        return step

    def _want(self) -> None:
        now = time.monotonic()
        for load in self._loads.values():
            every = min(load.reference.lease, self._settings.lease) / 3
            if now >= load.renewed + every:
                load.renewed = now
                self._step.wanted.append((load.lease, load.reference))

    def hear(self, output: KVConnectorOutput) -> None:
        heard = output.kv_connector_worker_meta
        if isinstance(heard, Heard):
            self._hear_of_pushes(heard)
            for request, change in heard.unsettled.items():
                self._rooms[request].unsettled += change
        for request in output.finished_recving or ():
            self._loads.pop(request, None)
            self._keep(request)
        self._let_go()

    def _keep(self, request: str) -> None:
        """vLLM frees the blocks of a load that has ended, and must not use them for another."""
        room = self._rooms.get(request)
        if room is None:
            return
        if room.unsettled == 0 or self._block_pool is None:
            del self._rooms[request]
            return
        self._block_pool.touch(room.blocks)
        room.kept = True

    def _let_go(self) -> None:
        for request, room in list(self._rooms.items()):
            if room.kept and room.unsettled == 0 and self._block_pool is not None:
                self._block_pool.free_blocks(reversed(room.blocks))
                del self._rooms[request]

    def _hear_of_pushes(self, heard: Heard) -> None:
        for push in list(self._pushes.values()):
            push.offers += heard.offered.get(push.lease, 0)
            if push.lease in heard.renewed and push.finished is not None:
                push.until = time.monotonic() + self._settings.lease
            if push.lease in heard.withdrawn and not push.abandoned:
                self._abandon(push, "the decode engine wants it no more", held=False)

    def has_work(self) -> bool:
        """The engine must go on stepping although no request is scheduled."""
        step = self._step
        if any(room.kept for room in self._rooms.values()):
            return True
        return bool(self._pushes or step.held or step.writes or step.abandoned or step.returned)

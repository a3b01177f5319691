"""The scheduler's half: which requests load from another engine, which blocks are kept for one, and
what the workers are told of it in each step. It does no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvxfer.vllm.blocks import NULL_BLOCK, BlockTable
from kvxfer.vllm.cache_reset import before_reset
from kvxfer.vllm.decode_requests import DecodeRequests
from kvxfer.vllm.log import logger
from kvxfer.vllm.prefill_requests import PrefillRequests, Purpose
from kvxfer.vllm.step import Heard, Step, WorkerAddress
from kvxfer.vllm.wishes import Wishes

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from kvxfer.vllm.groups import Group
    from kvxfer.vllm.fingerprint import Fingerprint
    from kvxfer.vllm.settings import Settings


class SchedulerSide:
    def __init__(
        self,
        settings: Settings,
        engine: str,
        groups: Sequence[Group],
        group_ids: Sequence[int],
        fingerprint: Fingerprint,
        workers: int,
        fails: bool,
        loads: bool,
        why_no_push: str,
        lookahead: int = 0,
        speculates: bool = False,
    ) -> None:
        """``fails``: a request that cannot be loaded is to fail, not to be computed here. ``loads``,
        ``why_no_push``: as of Wishes. ``lookahead``: as of BlockTable."""
        self._workers = workers
        self._unsent = 0  # messages in the outboxes of all workers
        self._fingerprint = fingerprint
        self._wishes = Wishes(why_no_push, loads, settings.bidirectional)
        self._keeps_answers = settings.bidirectional
        self._table = BlockTable(groups, group_ids, lookahead)
        self._decode = DecodeRequests(settings, self._table, fingerprint, fails)
        self._prefill = PrefillRequests(
            settings, engine, self._table, fingerprint, not why_no_push, speculates
        )
        self._begin_step()

    def _begin_step(self) -> None:
        self._step = self._decode.step = self._prefill.step = Step()

    def use_cache_manager(self, manager: KVCacheManager) -> None:
        self._prefill.cache_manager = manager
        before_reset(manager, lambda: self._before_reset(manager))

    def _before_reset(self, manager: KVCacheManager) -> None:
        """vLLM is about to forget what its blocks hold, perhaps because the weights have changed: nobody
        is to get any of it from now on. Where requests are computed vLLM refuses, and nothing changes."""
        pool = manager.block_pool
        in_use = pool.num_gpu_blocks - pool.get_num_free_blocks() - 1  # but the null block
        ours = self._prefill.kept_blocks()
        for request in self._decode.loading():
            ours.update(each for group in manager.get_block_ids(request) for each in group)
        ours.discard(NULL_BLOCK)
        if len(ours) + self._decode.kept_blocks() < in_use:
            return
        self._prefill.let_go_of_all()
        self._decode.fail_all("its engine's caches were reset while it was loaded")

    def use_block_pool(self, pool: BlockPool) -> None:
        self._decode.block_pool = pool

    def use_workers(self, addresses: Mapping[tuple[int, int], Any]) -> None:
        ordered = [addresses[key] for key in sorted(addresses)]
        if len(ordered) != self._workers or not all(isinstance(a, WorkerAddress) for a in ordered):
            found = ", ".join(sorted({type(each).__name__ for each in ordered}))
            raise ValueError(
                f"KvxferConnector: its {self._workers} workers gave {len(ordered)} addresses ({found}); "
                "in a MultiConnector it has to be the first that gives any"
            )
        first = ordered[0]
        self._fingerprint.add(first.factors)
        for name, value in self._fingerprint.described.items():
            logger.info("kvxfer: %s %s: %s", name, self._fingerprint.hashes[name], value)
        self._table.kernel_block_tokens = first.kernel_block_tokens
        workers = tuple(address.worker for address in ordered)
        for half in (self._decode, self._prefill):
            half.workers = workers
            half.division = first.division

    # --- a request ---

    def on_new_request(self, request: Request) -> None:
        params = request.kv_transfer_params
        if not params:
            return
        asked = self._wishes.read(request.request_id, params)
        if asked.prefill and not asked.refused:
            self._prefill.expect(request, params)
        if asked.load:
            self._decode.expect(request, params, asked.refused)

    def matched_tokens(self, request: Request, computed: int) -> int | None:
        """As DecodeRequests.matched_tokens."""
        return self._decode.matched_tokens(request, computed)

    def after_allocation(self, request: Request, blocks: KVCacheBlocks, external: int) -> None:
        self._decode.after_allocation(request, blocks, external)

    def request_finished(
        self, request: Request, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        params = request.kv_transfer_params or {}
        loading = self._decode.finished(request)
        if loading:
            purpose = Purpose.NONE
        elif params.get("do_remote_decode"):
            purpose = Purpose.DECODE
        else:
            purpose = Purpose.NEXT_TURN if self._keeps_answers else Purpose.NONE
        return self._prefill.finished(request, block_ids, purpose)

    # --- each step ---

    def build(self, output: SchedulerOutput) -> Step:
        step = self._step
        step.preempted += sorted(output.preempted_req_ids or ())
        self._prefill.hold_on(output)
        self._prefill.push_on(output)
        self._decode.want()
        self._begin_step()
        return step

    def hear(self, output: KVConnectorOutput) -> None:
        meta = output.kv_connector_worker_meta
        heard = meta if isinstance(meta, Heard) else None
        if heard is not None:
            self._unsent += heard.unsent
            self._prefill.hear(heard)
        self._prefill.hear_ended(output.finished_sending or ())
        self._decode.hear(heard, output)

    def has_work(self) -> bool:
        """The engine must go on stepping although no request is scheduled."""
        step = self._step
        if self._prefill.is_pushing() or self._decode.keeps_blocks() or self._unsent > 0:
            return True
        return bool(
            step.held
            or step.confirmed
            or step.dropped
            or step.revoked
            or step.writes
            or step.abandoned
            or step.returned
            or step.failed
        )

"""The classes that SGLang asks a transfer backend for; the manager has a file of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll, KVTransferDestination
from sglang.srt.disaggregation.common.conn import (
    CommonKVBootstrapServer,
    CommonKVReceiver,
    CommonKVSender,
)
from sglang.srt.utils.network import NetworkAddress

import kvxfer
from kvxfer.sglang import wire
from kvxfer.sglang.decode import Decode
from kvxfer.sglang.manager import KvxferKVManager
from kvxfer.sglang.meetings import Meeting, Route
from kvxfer.sglang.prefill import Prefill

__all__ = [
    "KvxferKVBootstrapServer",
    "KvxferKVManager",
    "KvxferKVReceiver",
    "KvxferKVSender",
]

_END_S = 1.5
"""For cancelled writes to end, where SGLang takes the pages of a request back at once. An agent takes
1 s at most (cancel_grace)."""


class KvxferKVSender(CommonKVSender):
    """Of one request, in prefill."""

    def __init__(
        self,
        mgr: KvxferKVManager,
        bootstrap_addr: str,
        bootstrap_room: int,
        req_has_disagg_prefill_dp_rank: bool = False,
    ) -> None:
        super().__init__(mgr, bootstrap_addr, bootstrap_room, req_has_disagg_prefill_dp_rank)
        self._side().open(bootstrap_room)

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
        super().init(num_kv_indices, aux_index)
        self._side().expect(self.bootstrap_room, num_kv_indices)

    def poll(self) -> int:
        """A failure is told when nothing reads the pages any more, so that they can be used again."""
        return self._held_back(super().poll())

    def failure_exception(self) -> None:
        """Also called where another rank has failed; SGLang then takes the pages back."""
        self._end_writes()
        super().failure_exception()

    def abort(self) -> None:
        if self.conclude_state != KVPoll.Success:
            super().abort()

    def clear(self) -> None:
        super().clear()
        self._side().close(self.bootstrap_room)

    def _held_back(self, state: int) -> int:
        if state == KVPoll.Failed and self._side().is_sending(self.bootstrap_room):
            return int(KVPoll.WaitingForInput)
        return state

    def _end_writes(self) -> None:
        side = self._side()
        side.fail(self.bootstrap_room, self.kv_mgr.failure_of(self.bootstrap_room))
        end = time.monotonic() + _END_S
        for transfer in side.transfers(self.bootstrap_room):
            with contextlib.suppress(kvxfer.Error):
                transfer.wait(max(0.0, end - time.monotonic()))

    def _side(self) -> Prefill:
        side: Prefill = self.kv_mgr.prefill_side
        return side


class KvxferKVReceiver(CommonKVReceiver):
    """Of one request, in decode."""

    def __init__(
        self, mgr: KvxferKVManager, bootstrap_addr: str, bootstrap_room: int | None = None
    ) -> None:
        self.bootstrap_infos: list[tuple[Meeting, bool]] | None = None
        super().__init__(mgr, bootstrap_addr, bootstrap_room)

    def init(self, prefill_dp_rank: int) -> None:
        """Begins to meet the ranks of prefill; the state is Bootstrapping until all are met."""
        if self.conclude_state == KVPoll.Failed:
            return
        info = self.kv_mgr.prefill_info_table.get(self.bootstrap_addr)
        if info is None:
            self._fail(f"the prefill engine at {self.bootstrap_addr} is gone")
            return
        self.prefill_info = info
        self.prefill_dp_rank = prefill_dp_rank
        self._asking = int(info.required_dst_info_num)
        routes, dummies = [], []
        for cp in info.target_cp_ranks:
            for tp in info.target_tp_ranks:
                for pp in info.target_pp_ranks:
                    route = Route(self.bootstrap_addr, prefill_dp_rank, cp, tp, pp)
                    routes.append((route, self._finder(route)))
                    dummies.append(self.kv_mgr.is_mla_backend and tp != info.target_tp_rank)
        meetings = self._side().meet(self.bootstrap_room, routes)
        self.bootstrap_infos = list(zip(meetings, dummies, strict=True))

    def send_metadata(
        self,
        kv_indices: Any,
        aux_index: int | None = None,
        state_indices: list[Any] | None = None,
        decode_prefix_len: int | None = None,
        destination: KVTransferDestination = KVTransferDestination.DEVICE,
        device_kv_indices: Any = None,
    ) -> None:
        if self.conclude_state == KVPoll.Failed or self.bootstrap_infos is None:
            self._fail(f"the prefill engine at {self.bootstrap_addr} was not met")
            return
        if destination != KVTransferDestination.DEVICE or device_kv_indices is not None:
            self._fail("kvxfer does not write into host pools (HiSparse, host receive)")
            return
        self.init_time = time.time()
        count = len(self.kv_mgr.kv_args.state_types)
        states = [wire.indices(each) for each in state_indices or [None] * count]
        self._side().ask(
            self.bootstrap_room,
            self.bootstrap_infos,
            wire.indices(kv_indices),
            int(aux_index or 0),
            states,
            int(decode_prefix_len or 0),
            self._asking,
        )

    def poll(self) -> int:
        """A failure is told when nothing can land in the pages any more, so that they can be used
        again, or after twice SGLANG_KVXFER_QUIET_TIMEOUT: then is_abort_release_safe says no."""
        state: int = super().poll()
        if state == KVPoll.Failed and self._side().is_draining(self.bootstrap_room):
            return int(KVPoll.Transferring)
        return state

    def abort(self) -> None:
        if self.conclude_state != KVPoll.Success:
            super().abort()

    def _clear(self) -> None:
        """Also called where another rank has failed."""
        self._side().give_up(self.bootstrap_room, self.kv_mgr.failure_of(self.bootstrap_room))
        super()._clear()

    def invalidate_cached_bootstrap_infos(self) -> None:
        """Ranks of prefill are kept by kvxfer, and forgotten when they are gone."""

    def _send_abort_notification(self, *, force_arm: bool = False) -> None:
        self._side().give_up(self.bootstrap_room, self.kv_mgr.failure_of(self.bootstrap_room))

    def _fail(self, why: str) -> None:
        self.kv_mgr.fail_request(self.bootstrap_room, why)
        self.conclude_state = KVPoll.Failed

    def _finder(self, route: Route) -> Callable[[], str]:
        def find() -> str:
            info = self._get_bootstrap_info_from_server(route.dp, route.cp, route.tp, route.pp)
            if info is None:
                raise ValueError("the bootstrap server does not know it")
            address: str = NetworkAddress(
                info["rank_ip"], int(info["rank_port"])
            ).to_host_port_str()
            return address

        return find

    def _side(self) -> Decode:
        side: Decode = self.kv_mgr.decode_side
        return side


class KvxferKVBootstrapServer(CommonKVBootstrapServer):
    """SGLang's own: ranks of prefill register the address of their agent."""

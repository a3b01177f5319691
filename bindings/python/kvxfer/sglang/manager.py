"""The manager that SGLang makes for each rank: its agent, its memory, and the states of its requests.

SGLang's common classes find out who serves what, compute which ranks belong together and keep the states
of requests; kvxfer brings the bytes, and all that the ranks tell each other. SGLang polls; one thread
waits for the agent, which ends with ``close``, or with the process."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.conn import CommonKVManager
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_device, get_parallel
from sglang.srt.utils.network import get_local_ip_auto

from kvxfer.sglang import memory, wire
from kvxfer.sglang.decode import Decode
from kvxfer.sglang.decoders import Model
from kvxfer.sglang.layout import layout_of
from kvxfer.sglang.listening import Listener
from kvxfer.sglang.log import logger
from kvxfer.sglang.prefill import Prefill
from kvxfer.sglang.settings import Settings
from kvxfer.sglang.supported import refuse_what_is_not_supported
from kvxfer.sglang.writing import Chunk


class KvxferKVManager(CommonKVManager):
    """Of one rank, prefill or decode."""

    supports_deferred_decode_kv_release = True
    reports_transfer_latency = True

    def __init__(
        self,
        args: Any,
        disaggregation_mode: DisaggregationMode,
        server_args: Any,
        is_mla_backend: bool | None = False,
    ) -> None:
        """ValueError: SGLang is started with what kvxfer does not do; it names the option."""
        parallel = get_parallel()
        refuse_what_is_not_supported(args, parallel, server_args, os.environ)
        kind = memory.kind_of_device(str(get_device().device))
        settings = Settings.of(
            envs.SGLANG_DISAGGREGATION_WAITING_TIMEOUT.get(),
            envs.SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT.get(),
        )
        layout = layout_of(args, parallel.attn_tp_rank, parallel.attn_tp_size, bool(is_mla_backend))
        prefill = disaggregation_mode == DisaggregationMode.PREFILL
        self.agent = memory.make_agent(
            "prefill" if prefill else "decode", get_local_ip_auto(), settings
        )
        try:
            # Peers write into decode's memory; nobody else touches prefill's.
            memory.register(
                self.agent, layout, kind, int(args.gpu_id), "none" if prefill else "write"
            )
            # The base registers this rank with the bootstrap server, so decode may ask before its end.
            self._lock = threading.RLock()
            self.prefill_side: Prefill | None = None
            self.decode_side: Decode | None = None
            super().__init__(args, disaggregation_mode, server_args, is_mla_backend)
            self._let_go_of_sockets()
            if prefill:
                self.prefill_side = Prefill(
                    self.agent,
                    layout,
                    Model(
                        int(getattr(args, "total_kv_head_num", 0) or 0),
                        bool(self.is_hybrid_mla_backend),
                        getattr(args, "swa_kv_cache_layout", None),
                    ),
                    settings,
                    _PrefillEngine(self),
                    self._lock,
                )
            else:
                self.decode_side = Decode(
                    self.agent, layout, settings, _DecodeEngine(self), self._lock
                )
        except BaseException:
            self.agent.close()
            raise
        side = self.prefill_side or self.decode_side
        assert side is not None
        self._listener = Listener(self.agent, side)
        self._listener.start()
        self._end = weakref.finalize(self, self._listener.close)  # at exit too

    def close(self) -> None:
        """Ends every request and the thread, and lets go of the memory. Idempotent."""
        self._end()

    def _let_go_of_sockets(self) -> None:
        """What the base has opened for messages, which go by notifications here."""
        self.server_socket.close(linger=0)

    def register_to_bootstrap(self) -> None:
        self.rank_port = int(self.agent.listen_address.rpartition(":")[2])
        super().register_to_bootstrap()

    # --- the states of requests, which any thread may change ---

    def update_status(self, bootstrap_room: int, status: int) -> None:
        with self._lock:
            super().update_status(bootstrap_room, status)
            if status == KVPoll.Failed:
                self.give_up(bootstrap_room, self.failure_of(bootstrap_room))

    def failure_of(self, number: int) -> str:
        with self.failure_lock:
            return str(self.failure_records.get(number, "SGLang has given the request up"))

    def give_up(self, number: int, why: str) -> None:
        if self.prefill_side is not None:
            self.prefill_side.fail(number, why)
        if self.decode_side is not None:
            self.decode_side.give_up(number, why)

    def fail_request(self, number: int, why: str) -> None:
        """With the first reason, if SGLang still has it."""
        with self._lock:
            if number not in self.request_status:
                return
            with self.failure_lock:
                self.failure_records.setdefault(number, why)
            self.update_status(number, KVPoll.Failed)

    # --- prefill ---

    def add_transfer_request(
        self,
        bootstrap_room: int,
        kv_indices: Any,
        index_slice: slice,
        is_last_chunk: bool,
        aux_index: int | None = None,
        state_indices: list[Any] | None = None,
        wait_event: Any = None,
        **_: Any,
    ) -> None:
        """For CommonKVSender.send."""
        assert self.prefill_side is not None
        chunk = Chunk(
            wire.indices(kv_indices),
            int(index_slice.start),
            is_last_chunk,
            int(aux_index or 0),
            tuple(wire.indices(each) for each in state_indices or ()),
            wait_event,
        )
        self.prefill_side.send(bootstrap_room, chunk)

    def note_copies(self, copies: int) -> None:
        """For SGLang's count of bytes: ranks of MLA are all written the same."""
        if self.is_mla_backend:
            self._kv_replica_factor = copies

    # --- decode ---

    def should_verify_kv_checksum(self, bootstrap_addr: str) -> bool:
        """Where each rank gets other bytes than prefill has summed up, there is nothing to compare."""
        info = self.prefill_info_table.get(bootstrap_addr)
        return info is not None and info.attn_tp_size == self.attn_tp_size

    def is_abort_release_safe(self, bootstrap_room: int, required_acks: int) -> bool:
        return self.decode_side is None or self.decode_side.is_settled(bootstrap_room)


class _PrefillEngine:
    def __init__(self, manager: KvxferKVManager) -> None:
        self._manager = weakref.proxy(manager)

    def asked(self, number: int, prefix: int, copies: int) -> None:
        self._manager.note_copies(copies)
        self._manager.req_to_decode_prefix_len[number] = prefix
        self._manager.update_status(number, KVPoll.WaitingForInput)

    def sent(self, number: int) -> None:
        self._manager.update_status(number, KVPoll.Success)

    def failed(self, number: int, why: str) -> None:
        self._manager.fail_request(number, why)


class _DecodeEngine:
    def __init__(self, manager: KvxferKVManager) -> None:
        self._manager = weakref.proxy(manager)

    def met(self, number: int) -> None:
        self._manager.update_status(number, KVPoll.WaitingForInput)

    def arrived(self, number: int) -> None:
        self._manager.update_status(number, KVPoll.Success)

    def failed(self, number: int, why: str) -> None:
        self._manager.fail_request(number, why)

    def prefill_gone(self, bootstrap: str) -> None:
        if self._manager.prefill_info_table.pop(bootstrap, None) is not None:
            logger.warning("kvxfer: lost a prefill rank of %s; it is met anew", bootstrap)

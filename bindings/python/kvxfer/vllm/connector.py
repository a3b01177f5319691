"""The connector as vLLM calls it: one object in the scheduler's process, one in each worker's."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvxfer.vllm import register
from kvxfer.vllm.addresses import own_address
from kvxfer.vllm.fingerprint import Fingerprint
from kvxfer.vllm.groups import Group
from kvxfer.vllm.kinds import kinds_of
from kvxfer.vllm.log import logger, shown
from kvxfer.vllm.place import Place
from kvxfer.vllm.reference import spoken_name
from kvxfer.vllm.scheduler import SchedulerSide
from kvxfer.vllm.settings import Settings
from kvxfer.vllm.stats import PromMetrics, Stats
from kvxfer.vllm.step import Step
from kvxfer.vllm.supported import drafts_with_kv, fences_blocks, why_no_push
from kvxfer.vllm.worker import WorkerSide

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorHandshakeMetadata,
        KVConnectorMetadata,
        KVConnectorWorkerMetadata,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
        KVConnectorPromMetrics,
        KVConnectorStats,
        PromMetric,
        PromMetricT,
    )
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class KvxferConnector(KVConnectorBase_V1, SupportsHMA):
    """Raises ValueError where the configuration is not to be had, by name, when the engine starts.
    Afterwards nothing that a peer, a proxy or a client does raises: it is that request's failure, which
    vLLM's kv_load_failure_policy decides on."""

    _cache_hit_source = CacheHitSource.P2P

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = Settings.of(vllm_config)
        transfer = vllm_config.kv_transfer_config
        assert transfer is not None
        assert transfer.engine_id is not None
        engine = spoken_name(transfer.engine_id)
        groups = Group.all_of(kv_cache_config)
        fingerprint = Fingerprint(vllm_config, settings.model_id)
        parallel = vllm_config.parallel_config
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(
                settings,
                engine,
                groups,
                kv_cache_config.transfer_group_ids,
                fingerprint,
                workers=parallel.tensor_parallel_size * parallel.pipeline_parallel_size,
                fails=transfer.kv_load_failure_policy == "fail",
                # Where blocks are loaded into a producer, vLLM does not keep a step that is under way
                # from writing into them.
                loads=transfer.is_kv_consumer,
                why_no_push=why_no_push(vllm_config),
                lookahead=getattr(vllm_config, "num_prefill_lookahead_tokens", 0),
                speculates=vllm_config.speculative_config is not None,
            )
        else:
            self._worker = WorkerSide(
                settings,
                engine,
                own_address(settings, vllm_config),
                groups,
                partial(kinds_of, vllm_config, kv_cache_config),
                fingerprint.of_model,
                Place.of_this_process(),
                why_no_push=why_no_push(vllm_config),
                drafts=drafts_with_kv(vllm_config),
                fenced=fences_blocks(vllm_config, kv_cache_config),
            )

    @property
    def _of_scheduler(self) -> SchedulerSide:
        assert self._scheduler is not None
        return self._scheduler

    @property
    def _of_worker(self) -> WorkerSide:
        assert self._worker is not None
        return self._worker

    @property
    def requires_kv_delivery(self) -> bool:
        """Whatever its role, an engine may be asked to prefill for another."""
        return True

    # --- the class ---

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """Heads outside of tokens: a worker of another tensor parallelism takes whole runs."""
        model = vllm_config.model_config
        return None if model is None or model.use_mla else "LBHNC"

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """A replayed whole graph would not call save_kv_layer."""
        return extra_config.get("mode") == "push"

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """Asked by vLLM 0.33. What is registered has to stay where it is."""
        return False

    @classmethod
    def build_kv_connector_stats(
        cls, data: dict[str, Any] | None = None
    ) -> KVConnectorStats | None:
        return Stats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # --- the scheduler's ---

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._of_scheduler.use_cache_manager(kv_cache_manager)

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        self._of_scheduler.use_block_pool(gpu_block_pool)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        self._of_scheduler.use_workers(metadata)

    def set_xfer_handshake_metadata(
        self, metadata: dict[int, KVConnectorHandshakeMetadata]
    ) -> None:
        self._of_scheduler.use_workers({(0, rank): each for rank, each in metadata.items()})

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        return self._kv_cache_config.transfer_group_ids

    def on_new_request(self, request: Request) -> None:
        self._of_scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        tokens = self._of_scheduler.matched_tokens(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        self._of_scheduler.after_allocation(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return self._of_scheduler.build(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._of_scheduler.hear(connector_output)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self._of_scheduler.request_finished(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self._of_scheduler.request_finished(request, block_ids)

    def reset_cache(self) -> bool:
        """What is kept for other engines is let go of when vLLM begins to reset its own."""
        return True

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.has_work()

    # --- a worker's ---

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._of_worker.register(kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self._of_worker.address()

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, Step)
        self._of_worker.before_forward(connector_metadata)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, Step)
        self._of_worker.before_preemption(kv_connector_metadata.preempted)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        step = self._get_connector_metadata()
        assert isinstance(step, Step)
        self._of_worker.start(step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to do: a request is scheduled when all of it is there."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: Any,
    ) -> None:
        """Once for each microbatch, of which each has a thread of its own."""
        self._of_worker.layer_is_saved(layer_name)

    def wait_for_save(self) -> None:
        """Lets go of what was not saved layer by layer; waits for nothing: blocks are kept until what
        reads them has ended. vLLM also calls it while an exception leaves the forward pass: then nothing
        more is sent of what that was to compute."""
        error = sys.exc_info()[1]
        broken = "" if error is None else f"the step that was to compute it failed: {shown(repr(error))}"
        self._of_worker.all_is_computed(broken)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending, results.finished_recving

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        return self._of_worker.poll()

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        return None if self._worker is None else self._worker.stats.take()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return self._of_worker.heard()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()


register()  # vLLM looks for a part of a MultiConnector by its name

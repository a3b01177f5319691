"""Engines of vLLM without their workers and models: its own schedulers, driven as its engine core drives
them, with the model runner's outputs made by paged_model and scheduling."""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from fake_workers import FakeWorker, Network
from kvxfer.vllm import register
from paged_model import PagedModel
from scheduling import as_said, leftovers, our_part, own_step
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm_config import config_of

BLOCK = 16
SCHEDULERS = (Scheduler, AsyncScheduler)
_MAX_MODEL_LEN = 512


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    reason: str = ""
    params: dict[str, Any] | None = None


@dataclass(frozen=True)
class Shape:
    """Of an engine."""

    blocks: int = 64
    window: int = 0
    ranks: int = 1
    budget: int = 2048  # tokens of a step
    most_running: int = 64
    policy: str = "recompute"
    role: str = "kv_both"
    extra: dict[str, Any] = field(default_factory=dict)
    connector: dict[str, Any] = field(default_factory=dict)
    """Of KVTransferConfig, in place of KvxferConnector alone."""


class Engine:
    def __init__(self, kind: type[Scheduler], name: str, network: Network, shape: Shape) -> None:
        config = _config(kind, name, shape)
        windows = [0, shape.window] if shape.window else [0]
        stub: Any = SimpleNamespace(accept_tokens=lambda *_: True)
        # As on GPUs, where AsyncScheduler and the second model runner are the default.
        runner = {"VLLM_USE_V2_MODEL_RUNNER": "1" if kind is AsyncScheduler else "0"}
        register()
        with mock.patch.dict(os.environ, runner):
            self.scheduler = kind(config, _caches(shape.blocks, windows), stub, BLOCK)
            self._depth = config.max_concurrent_batches
        assert self._depth == (2 if kind is AsyncScheduler else 1)
        self.name = name
        self.answers: dict[str, Answer] = {}
        self.preemptions = 0
        self._queue: deque[tuple[Any, ModelRunnerOutput]] = deque()
        sizes = [BLOCK] * len(windows)
        self.model = PagedModel(sizes, windows, shape.ranks)
        lease = shape.extra.get("lease", 30.0)
        self.workers = [
            FakeWorker(network, name, rank, shape.ranks, memory, sizes, lease)
            for rank, memory in enumerate(self.model.memories)
        ]
        connector = self.scheduler.connector
        assert connector is not None
        self._part = our_part(connector)
        addresses: Any = {(0, rank): each.address for rank, each in enumerate(self.workers)}
        connector.set_xfer_handshake_metadata_pp_aware(addresses)
        self._aggregator = KVOutputAggregator.from_connector(connector, shape.ranks)
        self._hasher = get_request_block_hasher(BLOCK, sha256)

    # --- requests ---

    def add(
        self,
        name: str,
        prompt: Sequence[int],
        params: dict[str, Any] | None = None,
        tokens: int = 1,
        **more: Any,
    ) -> None:
        sampling = SamplingParams(
            max_tokens=tokens, ignore_eos=True, extra_args={"kv_transfer_params": params}
        )
        request = Request(name, list(prompt), sampling, None, block_hasher=self._hasher, **more)
        self.scheduler.add_request(request)
        if request.abort_immediately:
            self.abort(name)

    def abort(self, *names: str) -> None:
        for request in self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED):
            self.answers.setdefault(request.request_id, Answer()).reason = "abort"

    def preempt_all(self) -> None:
        """As vLLM does where blocks run short, but all. Its reset of the cache does so, which is no reset for
        the connector here, and complains afterwards of blocks that are in use for other engines."""
        manager = self.scheduler.kv_cache_manager
        by_connector = manager.reset_prefix_cache
        manager.reset_prefix_cache = lambda: True
        try:
            self.scheduler.reset_prefix_cache(reset_running_requests=True)
        finally:
            manager.reset_prefix_cache = by_connector

    def status(self, name: str) -> str:
        return str(self.scheduler.requests[name].status.name)

    # --- steps ---

    def is_idle(self) -> bool:
        return not self._queue and not self.scheduler.has_requests()

    def step(self) -> None:
        """As EngineCore.step and step_with_batch_queue."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            self.preemptions += len(output.preempted_req_ids or ())
            self._queue.append((output, self._execute(output)))
            computes = output.total_num_scheduled_tokens > 0
            if len(self._queue) < self._depth and (computes or self.scheduler.has_requests()):
                return
        if self._queue:
            self._take(self.scheduler.update_from_output(*self._queue.popleft()))

    def _execute(self, output: Any) -> ModelRunnerOutput:
        step = own_step(output.kv_connector_metadata, self._part)
        for worker in self.workers:
            worker.before_forward(step)
        sampled = self.model.forward(self.scheduler, output.num_scheduled_tokens)
        self.model.forget(output.finished_req_ids)
        names = list(sampled)
        outputs: list[ModelRunnerOutput | None] = []
        for worker in self.workers:
            indices = {name: index for index, name in enumerate(names)}
            made = ModelRunnerOutput(names, indices, list(sampled.values()))
            made.kv_connector_output = as_said(worker.after_forward(step), self._part)
            outputs.append(made)
        found = self._aggregator.aggregate(outputs)
        assert found is not None
        return found

    def _take(self, outputs: dict[int, Any]) -> None:
        for output in outputs.get(0, SimpleNamespace(outputs=[])).outputs:
            answer = self.answers.setdefault(output.request_id, Answer())
            answer.tokens += output.new_token_ids
            answer.params = output.kv_transfer_params or answer.params
            if output.finish_reason is not None:
                answer.reason = str(output.finish_reason)

    # --- what holds at the end ---

    @property
    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    @property
    def is_whole(self) -> bool:
        """All blocks are free, but for the null block."""
        return self.free_blocks == self.scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1

    def check_nothing_is_left(self) -> None:
        scheduler = self.scheduler
        kept = {
            name: value
            for name, value in vars(scheduler).items()
            if name in _OF_REQUESTS and len(value) > 0
        }
        assert kept == {}
        assert leftovers(scheduler.connector) == {}
        assert all(worker.is_idle() for worker in self.workers)
        pool = scheduler.kv_cache_manager.block_pool
        assert [each for each in pool.blocks if each.ref_cnt and not each.is_null] == []
        assert self.is_whole
        for manager in scheduler.kv_cache_manager.coordinator.single_type_managers:
            assert not manager.req_to_blocks
        assert scheduler.reset_prefix_cache()


_OF_REQUESTS = (
    "requests", "waiting", "kv_holding_waiting", "deferred_waiting", "running", "deferred_frees",
    "finished_recving_kv_req_ids", "failed_recving_kv_req_ids", "_inflight_prefills",
)  # fmt: skip


def run(
    engines: Iterable[Engine], until: Callable[[], bool] | None = None, seconds: float = 3.0
) -> None:
    """Steps them in turn, until they have nothing to do or ``until`` holds."""
    engines = list(engines)
    end = time.monotonic() + seconds
    while not (until() if until is not None else all(engine.is_idle() for engine in engines)):
        assert time.monotonic() < end, "nothing becomes of it"
        for engine in engines:
            engine.step()


def _config(kind: type[Scheduler], name: str, shape: Shape) -> Any:
    config = config_of()
    model = config.model_config
    hf_config: Any = SimpleNamespace(
        architectures=["LlamaForCausalLM"], is_encoder_decoder=False, model_type="llama"
    )
    hf_config.get_text_config = lambda: hf_config
    model.hf_config = model.hf_text_config = hf_config
    model.model_arch_config = SimpleNamespace(
        architectures=["LlamaForCausalLM"], total_num_kv_heads=2
    )
    model._model_info = SimpleNamespace(supports_multimodal=False)
    model.runner_type = "generate"
    model.max_model_len = _MAX_MODEL_LEN
    model.dtype = torch.float32
    config.cache_config.num_gpu_blocks = shape.blocks
    config.cache_config.block_size = BLOCK
    config.parallel_config.tensor_parallel_size = shape.ranks
    config.scheduler_config.async_scheduling = kind is AsyncScheduler
    config.scheduler_config.max_num_batched_tokens = shape.budget
    config.scheduler_config.max_num_seqs = shape.most_running
    connector = {
        "kv_connector": "KvxferConnector",
        "kv_connector_extra_config": {"model_id": "paged", **shape.extra},
    }
    others: dict[str, Any] = {"kv_role": shape.role, "kv_load_failure_policy": shape.policy}
    config.kv_transfer_config = KVTransferConfig(
        kv_buffer_device="cpu", engine_id=name, **(others | connector | shape.connector)
    )
    return config


def _caches(blocks: int, windows: Sequence[int]) -> KVCacheConfig:
    init_none_hash(sha256)
    what: dict[str, Any] = {
        "block_size": BLOCK,
        "num_kv_heads": 2,
        "head_size": 32,
        "dtype": torch.float32,
    }
    groups = []
    for number, window in enumerate(windows):
        spec = (
            SlidingWindowSpec(**what, sliding_window=window)
            if window
            else FullAttentionSpec(**what)
        )
        groups.append(KVCacheGroupSpec([f"model.layers.{number}.attn"], spec))
    return KVCacheConfig(blocks, [], groups)

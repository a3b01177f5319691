"""KvxferConnector, for an engine of vLLM 0.32 on CPUs with pipeline stages: there the runner of a later
stage has no room for what the stage before sends, because only GPUs make it, when they warm up."""

from typing import Any

from kvxfer.vllm.connector import KvxferConnector
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

__all__ = ["KvxferConnector"]

_receive = GPUModelRunner.sync_and_gather_intermediate_tensors


def _receive_into_buffers(runner: Any, *arguments: Any, **options: Any) -> Any:
    if runner.intermediate_tensors is None:
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens,
            dtype=runner.model_config.dtype,
            device=runner.device,
        )
    return _receive(runner, *arguments, **options)


GPUModelRunner.sync_and_gather_intermediate_tensors = _receive_into_buffers

"""vLLM's KV cache groups as kvxfer's KV caches: one each, of its layers in the order of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import kvxfer
from kvxfer.vllm.fingerprint import element_of, window_of
from kvxfer.vllm.reference import GroupBlocks

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_ELEMENTS: dict[str, Any] = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8_e4m3",
    # As large; that they mean something else is in the fingerprint.
    "float8_e4m3fnuz": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}


def cache_name(group: int) -> str:
    """Of the group-th of those that take part in transfers."""
    return f"group{group}"


@dataclass(frozen=True)
class Group:
    layers: tuple[str, ...]
    """In the order of the model."""
    heads: int
    """Of the whole model."""
    k_size: int
    v_size: int
    element: Any
    block_tokens: int
    """As vLLM's scheduler counts; a kernel's block may be smaller."""
    window: int
    """Tokens behind which blocks are freed; 0: none are."""
    opaque: bool
    """What lies where within a block of a head is its kernel's affair."""

    @staticmethod
    def all_of(config: VllmConfig, kv_cache_config: KVCacheConfig) -> list[Group]:
        """ValueError names a kind of KV cache that the connector does not move."""
        for group in kv_cache_config.transfer_groups:
            on_host = getattr(group, "host_resident", False)
            if on_host or getattr(group, "is_eagle_group", False):
                what = "in vLLM's host pool" if on_host else "of a draft model"
                raise ValueError(
                    f"KvxferConnector does not support KV {what} (layer {group.layer_names[0]})"
                )
        return [
            _group(config, group.layer_names, group.kv_cache_spec)
            for group in kv_cache_config.transfer_groups
        ]


def _group(config: VllmConfig, layer_names: list[str], spec: Any) -> Group:
    from vllm.model_executor.models.utils import extract_layer_index
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

    supported = (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec)
    if type(spec) not in supported:
        raise ValueError(
            f"KvxferConnector does not support a KV cache of {type(spec).__name__} (layer "
            f"{layer_names[0]}); it moves those of full attention, MLA and sliding windows"
        )
    mla = isinstance(spec, MLAAttentionSpec)
    tp = config.parallel_config.tensor_parallel_size
    total = config.model_config.get_total_num_kv_heads()
    _check_plain(layer_names[0], spec)
    cache_dtype = config.cache_config.cache_dtype
    element = _ELEMENTS.get(element_of(spec, cache_dtype))
    if element is None:
        raise ValueError(
            f"KvxferConnector does not support kv_cache_dtype {cache_dtype!r} (layer "
            f"{layer_names[0]}: {spec.kv_quant_mode.name} of {spec.dtype}); it moves those that keep "
            "nothing beside their numbers: auto, bfloat16, float16, fp8, fp8_e4m3, fp8_e5m2"
        )
    return Group(
        layers=tuple(sorted(layer_names, key=extract_layer_index)),
        heads=1 if mla else total if total < tp else spec.num_kv_heads * tp,
        k_size=spec.head_size,
        v_size=spec.head_size_v,
        element=element,
        block_tokens=spec.block_size,
        window=window_of(spec),
        # vLLM's attention for CPUs packs K and V of a block for its instruction set.
        opaque=config.device_config.device_type == "cpu",
    )


def _check_plain(layer: str, spec: Any) -> None:
    """A token has K and then V of each head, and nothing else, where the spec does not say otherwise."""
    for name, plain in (("num_head_slots", None), ("state_content_bytes", None), ("tokens_per_state", 1)):
        if getattr(spec, name, plain) not in (plain, None):
            raise ValueError(
                f"KvxferConnector does not support how KV lies in the cache of {layer} ({name} is "
                f"{getattr(spec, name)}): choose another --attention-backend or --kv-cache-dtype"
            )
    if getattr(spec, "non_causal", False):
        raise ValueError(
            f"KvxferConnector does not support a prompt whose tokens see later ones (layer {layer})"
        )


class RegisteredCaches:
    """The tensors of this worker, which are kept alive."""

    def __init__(
        self,
        agent: kvxfer.Agent,
        groups: list[Group],
        tensors: dict[str, torch.Tensor],
        rank: int,
        ranks: int,
        fingerprint: int,
    ) -> None:
        self._tensors = tensors
        self._device = tensors[groups[0].layers[0]].device
        self.kernel_block_tokens: list[int] = []
        # Of each group: tokens in what the layout calls one, a token or an opaque block.
        self._unit_tokens: list[int] = []
        for memory in _memories([tensors[layer] for group in groups for layer in group.layers]):
            agent.register_memory(memory)
        for index, group in enumerate(groups):
            of_group = [tensors[layer] for layer in group.layers]
            layout = _layout(group, of_group, rank, ranks, fingerprint)
            agent.register_kv_cache(
                cache_name(index), layout, [tensor.data_ptr() for tensor in of_group]
            )
            tokens = int(of_group[0].shape[-2])
            self.kernel_block_tokens.append(tokens)
            self._unit_tokens.append(tokens if group.opaque else 1)

    def stream(self) -> Any:
        """What this thread has given the GPU to compute is in it, and may still write into blocks that
        were freed since, or not have written yet what is to be sent. None: host memory."""
        return current_stream(self._device)

    def between(
        self,
        group: int,
        ours: GroupBlocks,
        theirs: GroupBlocks,
        their_block_tokens: int,
        first: int,
        last: int,
    ) -> dict[str, Any]:
        """What read_blocks and prepare_blocks take for a request's tokens from ``first`` to ``last``."""
        unit = self._unit_tokens[group]
        span = Span.of(first, last, unit)
        our_block_tokens = self.kernel_block_tokens[group]
        return {
            "cache": cache_name(group),
            "local_ids": np.asarray(ours.ids, np.uint32),
            "remote_ids": np.asarray(theirs.ids, np.uint32),
            "tokens": span.count,
            "local_first_token": span.after(ours.first_block, our_block_tokens, unit),
            "remote_first_token": span.after(theirs.first_block, their_block_tokens, unit),
        }


def _layout(
    group: Group, tensors: list[torch.Tensor], rank: int, ranks: int, fingerprint: int
) -> kvxfer.KvLayout:
    first = tensors[0]
    for layer, tensor in zip(group.layers, tensors, strict=True):
        if tensor.shape != first.shape or tensor.stride() != first.stride():
            raise ValueError(
                f"KvxferConnector: the KV cache of {layer} has shape {tuple(tensor.shape)}, that of "
                f"{group.layers[0]} {tuple(first.shape)}"
            )
    # vLLM's canonical view: block, head, token, then K and V of one head and token.
    axes = {4: "BHNC", 3: "BNC"}.get(first.dim())
    if axes is None:
        raise ValueError(
            f"KvxferConnector: the KV cache of {group.layers[0]} has shape {tuple(first.shape)}, "
            "not (blocks, heads, tokens, content)"
        )
    shape, strides = list(first.shape), list(first.stride())
    k_size, v_size = group.k_size, group.v_size
    if group.opaque:
        if strides[-1] != 1 or strides[-2] != shape[-1]:
            raise ValueError(
                f"KvxferConnector: the KV cache of {group.layers[0]} has gaps: {strides}"
            )
        k_size, v_size = shape[-2] * shape[-1], 0
        shape[-2:] = [1, k_size]
        strides[-2:] = [k_size, 1]
    model = kvxfer.KvModel(
        layers=len(group.layers),
        heads=group.heads,
        k_size=k_size,
        v_size=v_size,
        element=group.element,
        fingerprint=fingerprint,
    )
    shard = kvxfer.KvShard(layers=len(group.layers), tp_rank=rank, tp_size=ranks)
    return kvxfer.KvLayout.from_tensors(model, shard, [kvxfer.KvTensor(axes, shape, strides)])


@dataclass(frozen=True)
class Span:
    """Tokens of a request as one worker's layout counts them, in whole units."""

    first: int
    count: int

    @staticmethod
    def of(first: int, last: int, unit: int) -> Span:
        return Span(first // unit, -(-last // unit) - first // unit)

    def after(self, block: int, block_tokens: int, unit: int) -> int:
        """Where it begins, counted from the begin of ``block`` on."""
        return self.first - block * block_tokens // unit


def current_stream(device: Any) -> Any:
    if device.type != "cuda":
        return None
    import torch

    return torch.cuda.current_stream(device)


def _memories(tensors: list[torch.Tensor]) -> list[kvxfer.RawMemory]:
    """The allocations that they are views of, each once."""
    found: dict[int, kvxfer.RawMemory] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        kind: Any = "host" if tensor.device.type == "cpu" else tensor.device.type
        found[storage.data_ptr()] = kvxfer.RawMemory(
            storage.data_ptr(), storage.nbytes(), kind, tensor.device.index or 0
        )
    return list(found.values())

"""How the blocks of each layer lie in vLLM's KV cache, and what their bytes mean. vLLM shows each layer
as blocks × heads × tokens × content; what it says of the content, and what only the kernel knows, decides
how finely blocks can be taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvxfer.vllm.groups import layer_specs

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheConfig, MambaSpec

_ELEMENTS: dict[str, Any] = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8_e4m3",
    # As large; that they mean something else is in the fingerprint.
    "float8_e4m3fnuz": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}
TOKENS, HEADS, PAGES = "tokens", "heads", "pages"


@dataclass(frozen=True)
class Kind:
    """Layers of one group that are alike in this are one KV cache of kvxfer."""

    content: str
    """TOKENS: K and then V of each head and token. HEADS: what lies where in a block of a head is its
    kernel's affair. PAGES: so it is in the whole block of a worker."""
    heads: int
    """Of the whole model; of PAGES, how many workers have different ones."""
    k_size: int
    """Elements of a head and token; of HEADS and PAGES, of a block of them."""
    v_size: int
    element: Any
    dtype: str
    backend: str = ""
    packing: str = ""
    """All else that decides which byte means what; of TOKENS nothing does."""
    divided_by_ranks: bool = False
    """What each worker has depends on how many there are."""


def kinds_of(
    config: VllmConfig, kv_cache_config: KVCacheConfig, tensors: Mapping[str, torch.Tensor]
) -> list[dict[str, Kind]]:
    """Of the layers of this worker, by group. ValueError: a layer that cannot be moved."""
    return [
        {
            layer: _kind(config, layer, spec, tensors[layer])
            for layer, spec in layer_specs(group).items()
            if layer in group.layer_names
        }
        for group in kv_cache_config.transfer_groups
    ]


def _kind(config: VllmConfig, layer: str, spec: Any, tensor: torch.Tensor) -> Kind:
    from vllm.v1.kv_cache_interface import MambaSpec

    find = _of_states if isinstance(spec, MambaSpec) else _of_attention
    return find(config, layer, spec, tensor)


def _of_states(config: VllmConfig, layer: str, spec: MambaSpec, tensor: torch.Tensor) -> Kind:
    dtype = ",".join(f"{_name(d)}{list(s)}" for d, s in zip(spec.dtypes, spec.shapes, strict=True))
    packing = f"{spec.mamba_type} {_conv_state_layout()}"
    shards = 1 if spec.tp_replicated else config.parallel_config.tensor_parallel_size
    size = _page_bytes(layer, tensor)
    return _packed(PAGES, shards, size, dtype, _backend(config, layer), packing)


def _of_attention(
    config: VllmConfig, layer: str, spec: AttentionSpec, tensor: torch.Tensor
) -> Kind:
    backend = _backend(config, layer)
    tp = config.parallel_config.tensor_parallel_size
    heads, guessed = _heads(config, spec, tp)
    dtype = dtype_of(spec, config.cache_config.cache_dtype)
    element = _ELEMENTS.get(dtype)
    if spec.num_head_slots is not None:
        # Its slots are of K and of V, or have all heads: no run of them is a head's.
        shards = min(tp, heads)
        return _packed(PAGES, shards, _page_bytes(layer, tensor), dtype, backend, _tokens(tensor))
    on_cpu = config.device_config.device_type == "cpu"
    if on_cpu or element is None or spec.state_content_bytes is not None:
        # vLLM's attention for CPUs packs K and V of a block for its instruction set.
        packing = _isa(spec) if on_cpu else _tokens(tensor)
        size = _head_bytes(layer, tensor)
        return _packed(HEADS, heads, size, dtype, backend, packing, guessed)
    size, size_v = spec.head_size, spec.head_size_v
    return Kind(TOKENS, heads, size, size_v, element, dtype, backend, "", guessed)


def _packed(
    content: str,
    heads: int,
    size: int,
    dtype: str,
    backend: str,
    packing: str,
    guessed: bool = False,
) -> Kind:
    import vllm

    # Which byte is what is not written down anywhere but in that version's kernels.
    version = ".".join(vllm.__version__.split("+")[0].split(".")[:2])
    packing = f"{packing} of vLLM {version}"
    divided = guessed or (content == PAGES and heads > 1)
    return Kind(content, heads, size, 0, "bytes", dtype, backend, packing, divided)


def _heads(config: VllmConfig, spec: AttentionSpec, tp: int) -> tuple[int, bool]:
    """Of the whole model; and whether that is a guess, because there are more workers than heads, and the
    model has layers with other numbers of them than the one that vLLM says of it."""
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    if isinstance(spec, MLAAttentionSpec):
        return 1, False
    total = config.model_config.get_total_num_kv_heads()
    if total >= tp:
        return spec.num_kv_heads * tp, False
    text_config = getattr(config.model_config, "hf_text_config", None)
    numbers = {
        str(value)
        for name, value in vars(text_config or object).items()
        if name.endswith("num_key_value_heads")
    }
    return total, len(numbers) > 1


def dtype_of(spec: Any, cache_dtype: str) -> str:
    """What a number in a block is: not the name that it was asked for by, of which several mean the
    same. Where numbers have more to them than their own bytes, such as scales, how they are kept."""
    from vllm.platforms import current_platform
    from vllm.v1.kv_cache_interface import KVQuantMode

    cache_dtype = getattr(spec, "cache_dtype_str", None) or cache_dtype
    if spec.kv_quant_mode == KVQuantMode.NONE and cache_dtype != "fp8_ds_mla":
        return _name(spec.dtype)
    if spec.kv_quant_mode == KVQuantMode.FP8_PER_TENSOR and cache_dtype != "fp8_ds_mla":
        # Its scales come with the weights, from the checkpoint.
        if cache_dtype == "fp8_e5m2":
            return "float8_e5m2"
        # Of MI300: the same bytes are half of what they are elsewhere.
        return "float8_e4m3fnuz" if current_platform.is_fp8_fnuz() else "float8_e4m3fn"
    return f"{cache_dtype} ({spec.kv_quant_mode.name} of {_name(spec.dtype)})"


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _backend(config: VllmConfig, layer: str) -> str:
    """The name of what attends, or computes states, in it."""
    layers = config.compilation_config.static_forward_context
    find = getattr(layers.get(layer), "get_attn_backend", None)
    return "" if find is None else str(find().get_name())


def _isa(spec: AttentionSpec) -> str:
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    return f"{spec.block_size} {_get_attn_isa(spec.dtype, spec.block_size, spec.head_size)}"


def _tokens(tensor: torch.Tensor) -> str:
    return f"blocks of {tensor.shape[-2]}"


def _conv_state_layout() -> str:
    import vllm.envs

    return str(getattr(vllm.envs, "VLLM_SSM_CONV_STATE_LAYOUT", None))


def _head_bytes(layer: str, tensor: torch.Tensor) -> int:
    """Of the tokens of a block, which lie together."""
    strides, shape = tensor.stride(), tensor.shape
    if strides[-1] != 1 or (shape[-2] > 1 and strides[-2] != shape[-1]):
        raise ValueError(
            f"KvxferConnector: a block of a head has gaps in the KV cache of {layer}: strides "
            f"{list(strides)} of {list(shape)}; set VLLM_KV_CACHE_LAYOUT to one with heads outside "
            "of tokens, such as LBHNC"
        )
    return int(shape[-2] * shape[-1] * tensor.element_size())


def _page_bytes(layer: str, tensor: torch.Tensor) -> int:
    """Of all that a worker has in a block, which lies together."""
    expected = 1
    for length, stride in sorted(
        zip(tensor.shape[1:], tensor.stride()[1:], strict=True), key=lambda axis: axis[1]
    ):
        if length > 1 and stride != expected:
            raise ValueError(
                f"KvxferConnector: a block has gaps in the KV cache of {layer}: strides "
                f"{list(tensor.stride())} of {list(tensor.shape)}"
            )
        expected *= int(length)
    return expected * tensor.element_size()

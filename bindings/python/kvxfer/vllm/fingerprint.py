"""Whether two engines mean the same by the same bytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvxfer.vllm.positions import positions
from kvxfer.vllm.reference import VERSION

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_SAMPLE_BYTES = 64
_MAX_HEADER_BYTES = 100 << 20


class Fingerprint:
    """``text`` is "version.model.layers", each a hash, so that a mismatch can say which differs."""

    def __init__(self, config: VllmConfig, kv_cache_config: KVCacheConfig, model_id: str) -> None:
        model = config.model_config
        self.described = {
            "weights": model_id or _weights(model.model, model.revision),
            "architectures": list(model.architectures),
            "overrides": _overrides(model),
            "config": getattr(model, "hf_config_path", None),
            "quantization": [model.quantization, getattr(model, "quantization_config", None)],
            "invented": _weights_are_invented(config),
            "images": _images(model),
            "dtype": str(model.dtype),
            "positions": positions(model),
        }
        layers: list[Any] = [
            [
                group.layer_names,
                type(group.kv_cache_spec).__name__,
                window_of(group.kv_cache_spec),
                element_of(group.kv_cache_spec, config.cache_config.cache_dtype),
            ]
            for group in kv_cache_config.transfer_groups
        ]
        layers.append(_packing(config, kv_cache_config))
        if config.cache_config.cache_dtype == "fp8_e5m2":
            layers.append(_backend(config))
        self._model = _hash(self.described)
        self.text = f"{VERSION}.{self._model}.{_hash(layers)}"

    @property
    def of_model(self) -> int:
        return int(self._model, 16)

    def differs(self, other: str) -> str:
        """Empty, or why the KV of an engine with the fingerprint ``other`` is of no use here."""
        if other == self.text:
            return ""
        parts = other.split(".")
        if len(parts) == 3 and parts[1] == self._model:
            return (
                "the prefill engine lays out the KV cache of this model otherwise "
                f"(fingerprints {other} and {self.text}): give both the same --block-size, "
                "--kv-cache-dtype and other options for the KV cache"
            )
        return (
            f"the prefill engine has another model (fingerprints {other} and {self.text}; both are "
            'logged at start, with what they are of): start both with one model, or set "model_id" '
            "where one name stands for two paths"
        )


def _packing(config: VllmConfig, kv_cache_config: KVCacheConfig) -> list[Any]:
    """Where what is in a block depends on who computes: vLLM's attention for CPUs."""
    if config.device_config.device_type != "cpu":
        return []
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    specs = [group.kv_cache_spec for group in kv_cache_config.transfer_groups]
    return [
        [spec.block_size, _get_attn_isa(spec.dtype, spec.block_size, spec.head_size)]
        for spec in specs
    ]


def _backend(config: VllmConfig) -> str:
    """vLLM's Triton attention keeps e4m3 where it is asked for e5m2, others keep e5m2."""
    return str(getattr(getattr(config, "attention_config", None), "backend", None))


def element_of(spec: Any, cache_dtype: str) -> str:
    """What a number in a block is: not the name that it was asked for by, of which several mean the
    same. Empty: numbers that have more to them than their own bytes, such as scales beside them."""
    from vllm.platforms import current_platform
    from vllm.v1.kv_cache_interface import KVQuantMode

    if spec.kv_quant_mode == KVQuantMode.NONE:
        return str(spec.dtype).removeprefix("torch.")
    if spec.kv_quant_mode == KVQuantMode.FP8_PER_TENSOR and cache_dtype != "fp8_ds_mla":
        # Its scales come with the weights, from the checkpoint.
        if cache_dtype == "fp8_e5m2":
            return "float8_e5m2"
        # Of MI300: the same bytes are half of what they are elsewhere.
        return "float8_e4m3fnuz" if current_platform.is_fp8_fnuz() else "float8_e4m3fn"
    return ""


def window_of(spec: Any) -> int:
    """Tokens of a sliding window whose blocks are freed behind it; 0: none are."""
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    return int(spec.sliding_window) if isinstance(spec, SlidingWindowSpec) else 0


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _overrides(model: Any) -> Any:
    """What was changed of the model's own configuration."""
    overrides = getattr(model, "hf_overrides", None) or {}
    if isinstance(overrides, dict):
        return overrides
    return getattr(overrides, "__qualname__", type(overrides).__qualname__)


def _weights_are_invented(config: VllmConfig) -> bool:
    """By vLLM at random, not loaded from where the model is."""
    return str(getattr(getattr(config, "load_config", None), "load_format", "")) == "dummy"


def _images(model: Any) -> Any:
    """What an engine does with images and the like; the prompt's hash has what each request asks for."""
    names = ("mm_processor_kwargs", "video_pruning_rate", "video_pruning_method")
    options = getattr(model, "multimodal_config", None)
    return {name: getattr(options, name, None) or None for name in names}


def _weights(model: str, revision: str | None) -> str:
    """The name of a model on a hub; of a folder, a sample of each of its tensors, wherever it lies."""
    folder = Path(model)
    if not folder.is_dir():
        return f"{model}@{revision or 'main'}"
    digest = hashlib.sha256()
    files = sorted(folder.glob("*.safetensors"))
    for path in files:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = file.read(min(size, _MAX_HEADER_BYTES))
            digest.update(header)
            for name, tensor in sorted(json.loads(header).items()):
                if name != "__metadata__":
                    begin, end = tensor["data_offsets"]
                    file.seek(8 + size + (begin + end) // 2)
                    digest.update(file.read(_SAMPLE_BYTES))
    if not files:
        raise ValueError(
            f"KvxferConnector: {model} has no *.safetensors to tell its weights by: set "
            '"model_id" in kv_connector_extra_config, the same for all engines with these weights'
        )
    return digest.hexdigest()

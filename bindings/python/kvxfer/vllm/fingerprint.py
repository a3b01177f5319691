"""Whether two engines mean the same by the same bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvxfer.vllm.caches import Cache
from kvxfer.vllm.groups import Group
from kvxfer.vllm.positions import positions
from kvxfer.vllm.supported import DRAFTS_WITHOUT_KV
from kvxfer.vllm.weights import weights_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_DIGITS = 12
_SHOWN = 200  # characters of a factor in a message

# What to do where two engines differ in a factor.
_REMEDIES = {
    "weights": 'start both with one model, or set "model_id" where one name stands for two paths',
    "draft": "give both the same --speculative-config",
    "attention_backend": "give both the same --attention-backend",
    "kv_cache_dtype": "give both the same --kv-cache-dtype",
    "layers": "give both the same model and options for the hybrid KV cache",
    "layout": "give both the same --block-size and VLLM_KV_CACHE_LAYOUT, and one version of vLLM",
    "tensor_parallel_size": "give both the same --tensor-parallel-size: states, and packed KV of "
    "several heads, are not split",
}
_OF_LAYOUT = ("layers", "kv_cache_dtype", "attention_backend", "layout", "tensor_parallel_size")
_OTHERWISE = "start both with the same options"


class Fingerprint:
    """By factors, of each a hash, so that a mismatch can say which differs."""

    def __init__(self, config: VllmConfig, model_id: str) -> None:
        model = config.model_config
        self.described: dict[str, Any] = {
            "weights": model_id or weights_of(model.model, model.revision),
            "architectures": list(model.architectures),
            "overrides": _overrides(model),
            "config": getattr(model, "hf_config_path", None),
            "quantization": [model.quantization, getattr(model, "quantization_config", None)],
            "load_format": _weights_are_invented(config),
            "images": _images(model),
            "dtype": str(model.dtype),
            "positions": positions(model),
            "draft": _draft(config),
        }
        self.hashes = {name: _hash(value) for name, value in self.described.items()}

    @property
    def of_model(self) -> int:
        return model_number(self.hashes)

    def add(self, factors: Mapping[str, Any]) -> None:
        """Those of layout_factors, once the workers have found out."""
        self.described |= factors
        self.hashes = {name: _hash(value) for name, value in self.described.items()}

    def differs(self, other: Mapping[str, str]) -> str:
        """Empty, or why the KV of an engine with those hashes is of no use here."""
        names = [
            name
            for name in self.hashes.keys() | other.keys()
            if self.hashes.get(name) != other.get(name)
        ]
        if not names:
            return ""
        order = [*self.described, *sorted(other)]
        first, *further = sorted(names, key=order.index)
        here = json.dumps(self.described.get(first), sort_keys=True, default=str)[:_SHOWN]
        what = (
            "lays out the KV cache of this model otherwise"
            if first in _OF_LAYOUT
            else "has another model"
        )
        return (
            f"the prefill engine {what}: {first} is {here} here, and differs there"
            + (f", as do {', '.join(further)}" if further else "")
            + f": {_REMEDIES.get(first, _OTHERWISE)} (each engine logs its own at the start)"
        )


def model_number(hashes: Mapping[str, str]) -> int:
    """What kvxfer is told of the model: of all factors but those of the layout, which it compares itself."""
    of_model = {name: each for name, each in hashes.items() if name not in _OF_LAYOUT}
    return int(_hash(of_model, 16), 16)


def layout_factors(
    caches: Sequence[Cache], groups: Sequence[Group], tp: int
) -> dict[str, Any]:
    """What the caches of an engine hold and how they lie, whatever part of it each worker has."""
    kinds = [cache.kind for cache in caches]
    factors: dict[str, Any] = {
        "layers": [[cache.layers, groups[cache.group].window] for cache in caches],
        "kv_cache_dtype": [kind.dtype for kind in kinds],
        "attention_backend": [kind.backend for kind in kinds],
        "layout": [
            [kind.content, kind.heads, kind.k_size, kind.v_size, kind.packing] for kind in kinds
        ],
    }
    if any(kind.divided_by_ranks for kind in kinds):
        factors["tensor_parallel_size"] = tp
    return factors


def _hash(value: Any, digits: int = _DIGITS) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


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


def _draft(config: VllmConfig) -> Any:
    """Of speculation with KV of its own: what computes that KV. How many tokens it drafts is no matter,
    unless prefill leaves as many to decode (BlockTable.left_to_decode)."""
    speculative = config.speculative_config
    if speculative is None or speculative.method in DRAFTS_WITHOUT_KV:
        return None
    draft = speculative.draft_model_config
    return [
        speculative.method,
        weights_of(draft.model, draft.revision),
        list(draft.architectures),
        str(draft.dtype),
        draft.quantization,
        max(1, getattr(config, "num_prefill_lookahead_tokens", 0) - 1),
    ]

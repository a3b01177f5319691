"""vLLM's KV cache groups: layers for which a request has one list of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig


@dataclass(frozen=True)
class Group:
    block_tokens: int
    """As vLLM's scheduler counts; a kernel's block may be smaller."""
    window: int = 0
    """Tokens behind which blocks are freed; 0: none are."""
    is_state: bool = False
    """A block holds the state after some token (Mamba and the like), not tokens."""
    by_position: bool = False
    """Of states: the list has a place for each ``block_tokens`` tokens, not one for all."""

    @staticmethod
    def all_of(kv_cache_config: KVCacheConfig) -> list[Group]:
        """Those that take part in transfers. ValueError names a kind of KV cache that the connector does
        not move."""
        for group in kv_cache_config.transfer_groups:
            if getattr(group, "host_resident", False):
                raise ValueError(
                    "KvxferConnector does not support KV in vLLM's host pool (layer "
                    f"{_first_of(group.layer_names)})"
                )
            for spec in layer_specs(group).values():
                _check_kind(_first_of(group.layer_names), spec)
        return [_group(group) for group in kv_cache_config.transfer_groups]


def layer_specs(group: Any) -> dict[str, Any]:
    """Of each layer of a KVCacheGroupSpec; in the scheduler, of which layers are named is no matter."""
    spec = group.kv_cache_spec
    of_layers = getattr(spec, "kv_cache_specs", None)
    if of_layers is not None:
        return {layer: of_layers[layer] for layer in group.layer_names}
    return dict.fromkeys(group.layer_names or [""], spec)


def _group(group: Any) -> Group:
    from vllm.v1.kv_cache_interface import MambaSpec

    spec = next(iter(layer_specs(group).values()))
    if isinstance(spec, MambaSpec):
        by_position = spec.mamba_cache_mode != "none"
        return Group(spec.block_size, is_state=True, by_position=by_position)
    return Group(spec.block_size, window_of(spec))


def window_of(spec: Any) -> int:
    """Tokens behind which blocks are freed, of a sliding window and what a draft keeps beside it; 0: none
    are."""
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    if not isinstance(spec, SlidingWindowSpec):
        return 0
    return int(spec.sliding_window + spec.extra_retained_tokens)


def _check_kind(layer: str, spec: Any) -> None:
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        MambaSpec,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )

    if type(spec) not in (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, MambaSpec):
        raise ValueError(
            f"KvxferConnector does not support a KV cache of {type(spec).__name__} (layer {layer}); it "
            "moves those of full attention, MLA with its indexer, sliding windows, and states of Mamba "
            "and linear attention"
        )
    if getattr(spec, "tokens_per_state", 1) not in (1, -1):
        raise ValueError(
            f"KvxferConnector does not support KV in which {spec.tokens_per_state} tokens are one entry "
            f"(layer {layer})"
        )
    if getattr(spec, "non_causal", False):
        raise ValueError(
            f"KvxferConnector does not support a prompt whose tokens see later ones (layer {layer})"
        )


def _first_of(layers: Sequence[str]) -> str:
    return layers[0] if layers else "of another pipeline stage"

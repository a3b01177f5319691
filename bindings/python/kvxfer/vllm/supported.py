"""What of vLLM the connector cannot do: refused by name when the engine starts. docs/vllm.md has the
table of all options that matter here, with those that are supported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

# Methods that draft without KV of their own: blocks hold the same with them and without.
DRAFTS_WITHOUT_KV = ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator")
# Methods whose KV lies in layers like those of the model, and is moved with them.
DRAFTS_WITH_KV = ("eagle", "eagle3", "mtp", "draft_model")


@dataclass(frozen=True)
class _Refusal:
    option: str
    """As it is written in vLLM's configuration."""
    is_set: Callable[[VllmConfig], bool]
    why: str


def refuse_what_is_not_supported(config: VllmConfig) -> None:
    """ValueError names the option and what to do."""
    for refusal in _REFUSALS:
        if refusal.is_set(config):
            raise ValueError(
                f"KvxferConnector does not support {refusal.option} as it is set: {refusal.why}"
            )


def why_no_push(config: VllmConfig) -> str:
    """Empty: this engine can write layers while it computes later ones."""
    kind = config.device_config.device_type
    if kind not in ("cpu", "cuda"):
        return f"push is not for KV caches on {kind}"  # nobody knows when a layer is computed
    if _option(config, "parallel_config.enable_dbo", False):
        return "push does not go with enable_dbo, which computes each layer in several parts"
    if _option(config, "parallel_config.ubatch_size", 0) > 1:
        return "push does not go with ubatch_size, which computes each layer in several parts"
    return ""


def drafts_with_kv(config: VllmConfig) -> bool:
    speculative = config.speculative_config
    return speculative is not None and speculative.method in DRAFTS_WITH_KV


def fences_blocks(config: VllmConfig, kv_cache_config: KVCacheConfig) -> bool:
    """Whether vLLM gives a block to a load only when nothing writes into it any more: its scheduler keeps
    the blocks of a consumer back until the steps that were under way have ended. A draft is computed
    after its step has, and blocks that are zeroed first are so in the stream."""
    transfer = config.kv_transfer_config
    return (
        transfer is not None
        and transfer.is_kv_consumer
        and not drafts_with_kv(config)
        and not kv_cache_config.needs_kv_cache_zeroing
    )


def _option(config: VllmConfig, path: str, default: Any) -> Any:
    """Some are not there in every version of vLLM."""
    value: Any = reduce(lambda each, name: getattr(each, name, None), path.split("."), config)
    return default if value is None else value


def _above_one(path: str) -> Callable[[VllmConfig], bool]:
    return lambda config: _option(config, path, 1) > 1


def _on(path: str) -> Callable[[VllmConfig], bool]:
    return lambda config: bool(_option(config, path, False))


def _given(path: str) -> Callable[[VllmConfig], bool]:
    return lambda config: _option(config, path, None) is not None


def _other_than(path: str, *defaults: Any) -> Callable[[VllmConfig], bool]:
    return lambda config: _option(config, path, defaults[0]) not in defaults


def _drafts_otherwise(config: VllmConfig) -> bool:
    speculative = config.speculative_config
    return speculative is not None and speculative.method not in (
        DRAFTS_WITHOUT_KV + DRAFTS_WITH_KV
    )


def _buffers_elsewhere(config: VllmConfig) -> bool:
    kind = config.device_config.device_type
    return bool(_option(config, "kv_transfer_config.kv_buffer_device", kind) != kind)


_NOT_MOVED = "leave it at its default, or use another connector"
_REBUILT = "the KV caches that peers know would go while they read them; " + _NOT_MOVED

_REFUSALS = (
    _Refusal(
        "prefill_context_parallel_size",
        _above_one("parallel_config.prefill_context_parallel_size"),
        _NOT_MOVED,
    ),
    _Refusal(
        "decode_context_parallel_size",
        _above_one("parallel_config.decode_context_parallel_size"),
        _NOT_MOVED,
    ),
    _Refusal("enable_elastic_ep", _on("parallel_config.enable_elastic_ep"), _REBUILT),
    _Refusal(
        "enable_fault_tolerance",
        _on("parallel_config.enable_fault_tolerance"),
        "a step that is given up takes with it what peers were promised; " + _NOT_MOVED,
    ),
    _Refusal(
        "speculative_config",
        _drafts_otherwise,
        f"it moves the KV of {', '.join(DRAFTS_WITH_KV)}, and {', '.join(DRAFTS_WITHOUT_KV)} have none",
    ),
    _Refusal("enable_sleep_mode", _on("model_config.enable_sleep_mode"), _REBUILT),
    _Refusal(
        "calculate_kv_scales",
        _on("cache_config.calculate_kv_scales"),
        "each engine would scale its fp8 KV otherwise; take scales from the checkpoint",
    ),
    _Refusal(
        "enable_return_routed_experts",
        lambda config: bool(
            _option(config, "aux_output_config.enable_return_routed_experts", False)
            or _option(config, "model_config.enable_return_routed_experts", False)
        ),
        "the experts of tokens that another engine has computed are not moved; leave it out",
    ),
    _Refusal("diffusion_config", _given("diffusion_config"), _NOT_MOVED),
    _Refusal("an encoder-decoder model", _on("model_config.is_encoder_decoder"), _NOT_MOVED),
    _Refusal(
        "hisparse_config",
        _given("attention_config.hisparse_config"),
        "KV in its host pool is not moved; " + _NOT_MOVED,
    ),
    _Refusal(
        "enable_permute_local_kv", _on("kv_transfer_config.enable_permute_local_kv"), _NOT_MOVED
    ),
    _Refusal(
        "kv_buffer_device",
        _buffers_elsewhere,
        "KV goes from and to the device that computes; where a NIC cannot reach it, kvxfer stages it "
        'by itself ("staging_bytes" in "agent_options")',
    ),
    _Refusal(
        "kv_buffer_size",
        _other_than("kv_transfer_config.kv_buffer_size", 1e9),
        'leave it out; "staging_bytes" in "agent_options" sizes what kvxfer stages in',
    ),
    _Refusal(
        "kv_port",
        _other_than("kv_transfer_config.kv_port", 14579),
        'set "port_range" in kv_connector_extra_config instead',
    ),
    _Refusal(
        "kv_ip",
        _other_than("kv_transfer_config.kv_ip", "127.0.0.1"),
        'set "host" in kv_connector_extra_config instead',
    ),
    _Refusal(
        "kv_rank", _given("kv_transfer_config.kv_rank"), "leave it out; engines find each other"
    ),
    _Refusal(
        "kv_parallel_size",
        _other_than("kv_transfer_config.kv_parallel_size", 1),
        "leave it out; any number of engines may meet",
    ),
)

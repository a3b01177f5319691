"""Each option of vLLM that KvxferConnector cannot do is refused by its name. No engine is started."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm_config import config_of

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
import vllm.config  # noqa: E402
from kvxfer.vllm.addresses import own_address  # noqa: E402
from kvxfer.vllm.connector import KvxferConnector  # noqa: E402
from kvxfer.vllm.settings import Settings  # noqa: E402
from kvxfer.vllm.supported import why_no_push  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

# Where it is in vLLM's configuration, what it is set to, and how it is named to the user.
_REFUSED: dict[str, tuple[Any, str]] = {
    "parallel_config.prefill_context_parallel_size": (2, "prefill_context_parallel_size"),
    "parallel_config.decode_context_parallel_size": (2, "decode_context_parallel_size"),
    "parallel_config.enable_elastic_ep": (True, "enable_elastic_ep"),
    "parallel_config.enable_fault_tolerance": (True, "enable_fault_tolerance"),
    "model_config.enable_sleep_mode": (True, "enable_sleep_mode"),
    "model_config.is_encoder_decoder": (True, "an encoder-decoder model"),
    "cache_config.calculate_kv_scales": (True, "calculate_kv_scales"),
    "aux_output_config.enable_return_routed_experts": (True, "enable_return_routed_experts"),
    "model_config.enable_return_routed_experts": (True, "enable_return_routed_experts"),
    "diffusion_config": (SimpleNamespace(), "diffusion_config"),
    "attention_config.hisparse_config": (SimpleNamespace(), "hisparse_config"),
    "kv_transfer_config.enable_permute_local_kv": (True, "enable_permute_local_kv"),
    "kv_transfer_config.kv_buffer_device": ("cuda", "kv_buffer_device"),
    "kv_transfer_config.kv_buffer_size": (2e9, "kv_buffer_size"),
    "kv_transfer_config.kv_port": (14580, "kv_port"),
    "kv_transfer_config.kv_ip": ("10.0.0.1", "kv_ip"),
    "kv_transfer_config.kv_rank": (0, "kv_rank"),
    "kv_transfer_config.kv_parallel_size": (2, "kv_parallel_size"),
}
# What other versions of vLLM than the one that is installed have.
_OF_OTHER_VERSIONS = {
    "cache_config.calculate_kv_scales",
    "model_config.enable_return_routed_experts",
    "kv_transfer_config.kv_buffer_size",
    "kv_transfer_config.kv_ip",
    "kv_transfer_config.kv_rank",
    "kv_transfer_config.kv_parallel_size",
}
_CLASSES = {
    "parallel_config": vllm.config.ParallelConfig,
    "model_config": vllm.config.ModelConfig,
    "cache_config": vllm.config.CacheConfig,
    "aux_output_config": vllm.config.AuxOutputConfig,
    "attention_config": vllm.config.AttentionConfig,
    "kv_transfer_config": vllm.config.KVTransferConfig,
}
# Of KVTransferConfig: what the connector reads or vLLM itself, and so does not ignore.
_HONOURED = {
    *("kv_connector", "kv_connector_module_path", "engine_id", "kv_role", "kv_load_failure_policy"),
    "kv_connector_extra_config",
}


def _config(path: str, value: Any) -> Any:
    config = config_of()
    _set(config, path, value)
    return config


def _set(config: Any, path: str, value: Any, must_be_there: bool = False) -> None:
    """As it is after the start, so whatever vLLM itself would say to it."""
    *within, name = path.split(".")
    for each in within:
        if getattr(config, each, None) is None:
            setattr(config, each, SimpleNamespace())
        config = getattr(config, each)
    if must_be_there:
        assert hasattr(config, name), f"this vLLM has no {path}"
    setattr(config, name, value)


# What GPU deployments set, and vLLM by itself; nothing of it is refused.
_TYPICAL: dict[str, dict[str, Any]] = {
    "defaults": {},
    "tensor parallelism": {"parallel_config.tensor_parallel_size": 8},
    "data parallelism": {"parallel_config.data_parallel_size": 2},
    "a rank of a dense model": {"parallel_config.data_parallel_index": 1},
    "experts": {
        "parallel_config.data_parallel_size": 16,
        "parallel_config.enable_expert_parallel": True,
        "parallel_config.enable_eplb": True,
    },
    "Ray": {"parallel_config.distributed_executor_backend": "ray"},
    "several processes": {"parallel_config.distributed_executor_backend": "mp"},
    "steps ahead": {"scheduler_config.async_scheduling": True},
    "whole prompts, in chunks": {"scheduler_config.enable_chunked_prefill": True},
    "prefix caching": {"cache_config.enable_prefix_caching": True},
    "fp8": {"cache_config.cache_dtype": "fp8", "model_config.quantization": "fp8"},
    "CUDA graphs": {"model_config.enforce_eager": False},
    "LoRA": {"lora_config": SimpleNamespace(max_lora_rank=16)},
    "a role": {"kv_transfer_config.kv_role": "kv_producer"},
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("given", _TYPICAL.values(), ids=_TYPICAL)
def test_nothing_typical_is_refused(given: dict[str, Any], mode: str, device: str) -> None:
    config = config_of({"mode": mode}, device)
    for path, value in given.items():
        _set(config, path, value, must_be_there=True)
    assert Settings.of(config).mode == mode
    config.kv_transfer_config.kv_connector_extra_config["host"] = "127.0.0.1"
    assert own_address(Settings.of(config), config).reached == "127.0.0.1"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_transfer_config_is_taken_as_vllm_makes_it(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself, and of a part of a MultiConnector."""
    monkeypatch.setattr(type(current_platform), "device_type", device)
    part = {"kv_connector": "KvxferConnector", "kv_role": "kv_both"}
    for more in ({}, {"engine_id": "engine-1"}):
        config = config_of({}, device)
        config.kv_transfer_config = vllm.config.KVTransferConfig(**part, **more)
        assert config.kv_transfer_config.kv_buffer_device == device
        assert Settings.of(config).mode == "pull"


def test_the_model_runner_is_of_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("0", "1"):
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", version)
        assert Settings.of(config_of({"mode": "push"}, "cuda")).mode == "push"


@pytest.mark.parametrize("path", _REFUSED)
def test_what_is_refused(path: str) -> None:
    value, named = _REFUSED[path]
    with pytest.raises(ValueError, match=f"KvxferConnector does not support {named} as it is set: "):
        Settings.of(_config(path, value))


@pytest.mark.parametrize("path", sorted(_REFUSED.keys() - _OF_OTHER_VERSIONS))
def test_vllm_has_what_is_refused(path: str) -> None:
    """Else nobody would be refused anything."""
    *within, name = path.split(".")
    owner = _CLASSES[within[0]] if within else vllm.config.VllmConfig
    assert name in owner.__dataclass_fields__ or hasattr(owner, name)


def test_every_field_of_the_transfer_config_is_honoured_or_refused() -> None:
    """A field that a later vLLM adds has to be decided on."""
    fields = set(vllm.config.KVTransferConfig.__dataclass_fields__)
    refused = {path.partition(".")[2] for path in _REFUSED if path.startswith("kv_transfer_config")}
    assert fields - _HONOURED - refused == set()


@pytest.mark.parametrize("name", ["kv_port", "enable_permute_local_kv"])
def test_the_default_is_vllms(name: str) -> None:
    config = config_of()
    default = vllm.config.KVTransferConfig.__dataclass_fields__[name].default
    setattr(config.kv_transfer_config, name, default)
    Settings.of(config)


# --- speculation ---


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "draft_model", "ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"])
def test_drafts_without_kv_are_supported(method: str) -> None:
    Settings.of(_config("speculative_config", SimpleNamespace(method=method)))


@pytest.mark.parametrize(
    "method", ["dflash", "dspark", "custom_class", None]
)
def test_drafts_whose_kv_is_not_known_are_refused(method: str | None) -> None:
    with pytest.raises(ValueError, match=r"speculative_config as it is set: .*eagle, .*ngram"):
        Settings.of(_config("speculative_config", SimpleNamespace(method=method)))


# --- push ---

_NO_PUSH = {
    "parallel_config.enable_dbo": (True, "enable_dbo, which computes each layer in several parts"),
    "parallel_config.ubatch_size": (2, "ubatch_size, which computes each layer in several parts"),
    "device_config.device_type": ("xpu", "push is not for KV caches on xpu"),
}


@pytest.mark.parametrize("path", _NO_PUSH)
def test_push_is_refused_where_a_layer_may_not_be_whole(path: str) -> None:
    """And pull is not: nobody can make such an engine push."""
    value, says = _NO_PUSH[path]
    config = _config(path, value)
    config.kv_transfer_config.kv_buffer_device = config.device_config.device_type
    assert Settings.of(config).mode == "pull"
    assert says in why_no_push(config)
    config.kv_transfer_config.kv_connector_extra_config["mode"] = "push"
    with pytest.raises(ValueError, match='mode is "push", and ') as raised:
        Settings.of(config)
    assert says in str(raised.value)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_push_is_supported(kind: str) -> None:
    assert Settings.of(config_of({"mode": "push"}, kind)).mode == "push"


def test_vllm_has_what_push_is_refused_for() -> None:
    for path in _NO_PUSH:
        if path.startswith("parallel_config"):
            assert path.partition(".")[2] in vllm.config.ParallelConfig.__dataclass_fields__


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer", "kv_both"])
def test_blocks_that_preemption_has_freed_are_never_handed_on(role: str) -> None:
    """vLLM looks at this in place of the role: any engine may be asked to prefill."""
    connector = KvxferConnector.__new__(KvxferConnector)
    connector._kv_transfer_config = vllm.config.KVTransferConfig("KvxferConnector", kv_role=role)
    assert connector.requires_kv_delivery

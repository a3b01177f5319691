"""vLLM's configuration as an engine gives it to the connector, without a model: vLLM's own classes with
their own defaults, so that what is refused by mistake is seen."""

import copy
import dataclasses
import functools
from types import SimpleNamespace
from typing import Any


@functools.cache
def _default() -> Any:
    from vllm.config import DeviceConfig, VllmConfig

    return VllmConfig(device_config=DeviceConfig(device="cpu"))


def _model() -> Any:
    """One that vLLM has not looked for; the tests give it nothing to look for."""
    from vllm.config import ModelConfig

    model = ModelConfig.__new__(ModelConfig)
    for each in dataclasses.fields(ModelConfig):
        if each.default is not dataclasses.MISSING:
            setattr(model, each.name, each.default)
        elif each.default_factory is not dataclasses.MISSING:
            setattr(model, each.name, each.default_factory())
    model.hf_config = model.hf_text_config = SimpleNamespace(is_encoder_decoder=False)
    return model


def config_of(
    extra: dict[str, Any] | None = None, device: str = "cpu", **parallel: Any
) -> Any:
    """``extra``: kv_connector_extra_config; ``parallel``: of parallel_config. The caller may change it."""
    from vllm.config import KVTransferConfig

    config = copy.copy(_default())
    for each in dataclasses.fields(config):
        setattr(config, each.name, copy.copy(getattr(config, each.name)))
    config.model_config = _model()
    config.device_config.device_type = device
    # Its default is what vLLM runs on.
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="KvxferConnector",
        kv_role="kv_both",
        kv_buffer_device=device,
        kv_connector_extra_config=extra or {},
    )
    for name, value in parallel.items():
        if not hasattr(config.parallel_config, name):
            raise AttributeError(f"this vLLM's parallel_config has no {name}")
        setattr(config.parallel_config, name, value)
    return config

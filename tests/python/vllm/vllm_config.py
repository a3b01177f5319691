"""As much of a VllmConfig as the connector looks at before an engine is started."""

from types import SimpleNamespace
from typing import Any


def config_of(extra: dict[str, Any] | None = None, **parallel: Any) -> Any:
    """``extra``: kv_connector_extra_config; the others are of parallel_config."""
    ranks: dict[str, Any] = {
        "pipeline_parallel_size": 1,
        "tensor_parallel_size": 1,
        "data_parallel_master_ip": "127.0.0.1",
        "master_addr": "127.0.0.1",
    }
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_connector_extra_config=extra or {}, enable_permute_local_kv=False
        ),
        parallel_config=SimpleNamespace(**(ranks | parallel)),
        speculative_config=None,
        model_config=SimpleNamespace(enable_sleep_mode=False),
        device_config=SimpleNamespace(device_type="cpu"),
    )

"""What the backend does not do is refused when the engine starts, by the name of SGLang's option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STATES = ("mamba", "swa", "dsa", "block_scale", "block_scale_swa")
"""States whose items go one to one."""

_OTHER = "or use --disaggregation-transfer-backend nixl"


_OPTIONS = {
    "enable_hisparse": ("--enable-hisparse", "its host pool is not moved"),
    "enable_memory_saver": ("--enable-memory-saver", "memory that peers write would be freed"),
    "enable_pd_role_switch": ("--enable-pd-role-switch", "a rank keeps its role"),
}
_VARIABLES = {
    "SGLANG_DISAGG_STAGING_BUFFER": "kvxfer stages by itself",
    "SGLANG_MOONCAKE_CUSTOM_MEM_POOL": "the metadata buffers have to be in host memory",
}


def refuse_what_is_not_supported(
    kv_args: Any, parallel: Any, server_args: Any, environment: Mapping[str, str]
) -> None:
    """ValueError."""
    for option, size in (
        ("--pp-size", parallel.pp_size),
        ("--attn-cp-size", parallel.attn_cp_size),
        ("--dcp-size", parallel.attn_dcp_size),
    ):
        if size > 1:
            raise _refused(f"{option} is {size}", "a rank has other layers or tokens: set it to 1")
    if parallel.enable_kv_cache_sharding:
        raise _refused("--enable-kv-cache-sharding is set", "a rank has other pages: leave it out")
    for name, (option, why) in _OPTIONS.items():
        if getattr(server_args, name, False):
            raise _refused(f"{option} is set", f"{why}: leave it out")
    for name, why in _VARIABLES.items():
        if environment.get(name, "").lower() not in ("", "0", "false", "no"):
            raise _refused(f"{name} is set", f"{why}: unset it")
    if getattr(kv_args, "mla_compression_ratios", None):
        raise _refused("the model has compressed MLA caches (DeepSeek-V4)", "they are not moved")
    for kind in kv_args.state_types:
        if kind.value not in STATES:
            raise _refused(f'the model has the state "{kind.value}"', "it is not moved")


def _refused(what: str, why: str) -> ValueError:
    return ValueError(f"kvxfer.sglang: {what}: {why}, {_OTHER}")

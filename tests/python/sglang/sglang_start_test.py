"""SGLang finds the backend by its plugins, and what kvxfer does not do is refused at the start by the
name of SGLang's option."""

from __future__ import annotations

from typing import Any

import pytest
from sglang_pair import Cluster


def test_sglang_knows_the_name(cluster: Cluster) -> None:
    plugin = cluster.plugin()
    assert plugin.parse("--disaggregation-transfer-backend", "kvxfer") == "kvxfer"
    classes = plugin.classes()
    assert classes.pop("KVARGS") == "sglang.srt.disaggregation.base.conn"
    assert set(classes.values()) == {"kvxfer.sglang.conn", "kvxfer.sglang.manager"}
    # Expect those of SGLang to be as before.
    others = plugin.others()
    assert {"mooncake", "nixl", "fake"} < set(others)
    assert "FakeKVSender" in others


@pytest.mark.parametrize(
    ("module", "owner", "name"),
    [
        ("sglang.srt.disaggregation.utils", "", "get_kv_class"),
        ("sglang.srt.disaggregation.common.conn", "CommonKVManager", "update_status"),
        ("sglang.srt.arg_groups.choices", "", "add_disagg_transfer_backend_choices"),
    ],
)
def test_another_sglang_is_refused_by_name(
    cluster: Cluster, module: str, owner: str, name: str
) -> None:
    plugin = cluster.plugin()
    said = plugin.register_without(module, owner, name)
    assert ".".join(each for each in (module, owner, name) if each) in said
    assert "0.5.23" in said


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"options": (("pp_size", 2),)}, "--pp-size is 2"),
        ({"environment": (("SGLANG_DISAGG_STAGING_BUFFER", "1"),)}, "SGLANG_DISAGG_STAGING_BUFFER"),
        ({"environment": (("SGLANG_KVXFER_PORT_RANGE", "x"),)}, "SGLANG_KVXFER_PORT_RANGE"),
        ({"environment": (("SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "NVLINK"),)}, "CUSTOM_MEM_POOL"),
        ({"options": (("enable_memory_saver", True),)}, "--enable-memory-saver"),
        ({"state": "dsa_tail"}, '"dsa_tail"'),
        ({"state": "qsa_pending"}, "nixl"),
    ],
)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_what_is_not_done_is_refused(
    cluster: Cluster, role: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(RuntimeError, match=named):
        cluster.rank(role, **options)


def test_a_port_of_the_range(cluster: Cluster) -> None:
    first = cluster.rank("prefill", environment=(("SGLANG_KVXFER_PORT_RANGE", "23500-23650"),))
    second = cluster.rank("decode", environment=(("SGLANG_KVXFER_PORT_RANGE", "23500-23650"),))
    ports = {each.port() for each in (first, second)}
    assert len(ports) == 2 and all(23500 <= port <= 23650 for port in ports)

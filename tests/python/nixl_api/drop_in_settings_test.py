"""What NIXL's settings choose in kvxfer: transports, devices, parameters of backends."""

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from kvxfer.compat.nixl import api, bindings, logs
from kvxfer.compat.nixl.host import Host
from kvxfer.compat.nixl.net_devices import map_devices
from kvxfer.compat.nixl.settings import settings_for, warn_of_parameters
from kvxfer.compat.nixl.transports import ALL, map_transports
from nixl_record import Pair, Recorder, run_to_end

NIXL = SimpleNamespace(api=api, bindings=bindings, is_drop_in=True)
HOST = Host(("mlx5_0", "mlx5_1"), ("rdmap79s0", "rdmap80s0"), ("eth0", "ib0", "lo"))
RAILS = {"verbs": {"devices": ["mlx5_0:1", "mlx5_1:1"]}}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("UCX_", "KVXFER_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(logs, "_warned", set())


def _set(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def _without(*kept: str) -> set[str]:
    return set(ALL) - set(kept)


# --- UCX_TLS ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "left_out"),
    [
        ("all", set()),
        ("all,cuda_copy", set()),
        ("rc,cuda_copy,cuda_ipc", _without("verbs", "cuda_ipc")),
        ("rc_x", _without("verbs")),
        ("rc_mlx5, rc_verbs", _without("verbs")),
        ("\\rc,ud:aux,self", _without("verbs", "loopback")),
        ("ib,tcp", _without("verbs", "libfabric", "tcp")),
        ("srd,self", _without("libfabric", "loopback")),
        ("tcp,self,sm", _without("tcp", "loopback", "shm")),
        ("sm", _without("shm")),
        ("posix,cma,rdmacm", _without("shm")),
        ("cuda,gdr_copy,rc", _without("cuda_ipc", "verbs")),
        ("^cuda_ipc", {"cuda_ipc"}),
        ("^tcp,sm", {"tcp", "shm"}),
        ("^ib", {"verbs", "libfabric"}),
        ("^rc_x,ud,dc", set()),
    ],
)
def test_transports_choose_backends(value: str, left_out: set[str]) -> None:
    mapped = map_transports(value)
    assert (mapped.left_out, mapped.problems) == (left_out, [])


@pytest.mark.parametrize(
    ("value", "left_out", "said"),
    [
        ("rc,rocm,nonsense", _without("verbs"), "no rocm, nonsense; KVXFER_BACKENDS"),
        ("nonsense", set(), "no nonsense"),
        ("cuda_copy", set(), "names no transport that moves data"),
        ("dc,self", _without("verbs", "loopback"), "no ud or dc"),
        ("^gdr_copy", set(), "KVXFER_STAGING_BYTES=0"),
        ("^cma", set(), "KVXFER_BACKENDS=^shm"),
        ("^ugni", set(), "no ugni"),
    ],
)
def test_what_no_backend_does_is_said(value: str, left_out: set[str], said: str) -> None:
    mapped = map_transports(value)
    assert mapped.left_out == left_out
    assert len(mapped.problems) == 1 and said in mapped.problems[0]


# --- UCX_NET_DEVICES -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "options", "left_out"),
    [
        ("all", {}, set()),
        ("mlx5_0:1,mlx5_1:1", RAILS, {"libfabric", "tcp"}),
        ("mlx5_*:1", {"verbs": {"devices": ["mlx5_*:1"]}}, {"libfabric", "tcp"}),
        ("eth0", {"tcp": {"addresses": ["eth0"]}}, {"verbs", "libfabric"}),
        ("lo", {"tcp": {"addresses": ["lo"]}}, {"verbs", "libfabric"}),
        ("mlx5_0:1, ib0", {**RAILS, "tcp": {"addresses": ["ib0"]}}, {"libfabric"}),
        ("rdmap79s0:1", {"libfabric": {"domains": ["rdmap79s0-rdm"]}}, {"verbs", "tcp"}),
        ("^mlx5_1:1", {"verbs": {"devices": ["^mlx5_1:1"]}}, set()),
        ("^rdmap79s0:1", {"libfabric": {"domains": ["rdmap80s0-rdm"]}}, set()),
        ("^rdmap*:1", {}, {"libfabric"}),
    ],
)
def test_devices_choose_options(value: str, options: dict, left_out: set[str]) -> None:
    mapped = map_devices(value, HOST, on_loopback=False)
    if value == "mlx5_0:1, ib0":
        options = options | {"verbs": {"devices": ["mlx5_0:1"]}}
    assert (mapped.options, mapped.left_out, mapped.problems) == (options, left_out, [])


@pytest.mark.parametrize(
    ("value", "options", "said"),
    [
        (
            "mlx5_0:1,mlx5_9:1",
            {"verbs": {"devices": ["mlx5_0:1"]}},
            "has no mlx5_9:1 (it has mlx5_0",
        ),
        ("bond7", {}, "KVXFER_TCP_ADDRESSES"),
        ("^eth0", {}, "KVXFER_TCP_ADDRESSES=ib0,lo"),
        ("^mlx5_9:1", {}, "has no mlx5_9:1"),
    ],
)
def test_devices_that_cannot_be_chosen_are_said(value: str, options: dict, said: str) -> None:
    mapped = map_devices(value, HOST, on_loopback=False)
    assert mapped.options == options
    assert len(mapped.problems) == 1 and said in mapped.problems[0]


def test_where_no_device_is_here_nothing_is_left_out() -> None:
    assert map_devices("mlx5_9:1", HOST, on_loopback=False).left_out == set()


def test_naming_an_interface_does_not_open_it() -> None:
    """Agents stay on loopback until kvxfer is told otherwise, for nobody is authenticated."""
    mapped = map_devices("eth0", HOST, on_loopback=True)
    assert mapped.options == {} and "KVXFER_LISTEN=" in mapped.problems[0]
    assert map_devices("lo", HOST, on_loopback=True).options == {"tcp": {"addresses": ["lo"]}}


def test_devices_are_those_of_sysfs(tmp_path: Path) -> None:
    for device, vendor in (("mlx5_0", "0x15b3"), ("rdmap79s0", "0x1d0f")):
        (tmp_path / "infiniband" / device / "device").mkdir(parents=True)
        (tmp_path / "infiniband" / device / "device" / "vendor").write_text(vendor + "\n")
    (tmp_path / "net" / "eth0").mkdir(parents=True)
    assert Host.here(tmp_path) == Host(("mlx5_0",), ("rdmap79s0",), ("eth0",))
    assert Host.here(tmp_path / "nothing") == Host()


# --- Both, and kvxfer's own ------------------------------------------------------------------------
_RDMA_ONLY = {"UCX_TLS": "rc,cuda_copy,cuda_ipc", "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1"}
_NO_NETWORK = ["^loopback", "^shm", "^libfabric", "^tcp"]


@pytest.mark.parametrize(
    ("variables", "params", "options"),
    [
        ({}, {}, {}),
        (_RDMA_ONLY, {}, {"backends": _NO_NETWORK, "backend": RAILS}),
        (_RDMA_ONLY | {"KVXFER_BACKENDS": "^shm"}, {}, {"backend": RAILS}),
        (_RDMA_ONLY | {"KVXFER_BACKENDS": "tcp"}, {}, {}),
        (_RDMA_ONLY | {"KVXFER_BACKENDS": "^verbs"}, {}, {}),
        (_RDMA_ONLY | {"KVXFER_BACKENDS": "faulty:verbs"}, {}, {"backend": RAILS}),
        (_RDMA_ONLY | {"KVXFER_BACKENDS": "ucx,tcp"}, {}, {}),
        (_RDMA_ONLY | {"KVXFER_VERBS_DEVICES": "mlx5_1"}, {}, {"backends": _NO_NETWORK}),
        (
            {"UCX_TLS": "tcp,self", "KVXFER_REQUIRE_BACKENDS": "verbs,cuda_ipc"},
            {},
            {
                "backends": ["^shm", "^libfabric"],
            },
        ),
        ({"UCX_TLS": "^tcp", "KVXFER_SERVE_METADATA": "1"}, {}, {}),
        (
            {"UCX_NET_DEVICES": "mlx5_*", "KVXFER_TCP_ADDRESSES": "eth0"},
            {},
            {
                "backends": ["^libfabric"],
                "backend": {"verbs": {"devices": ["mlx5_*"]}},
            },
        ),
        (
            {"UCX_NET_DEVICES": "eth0"},
            {"device_list": "mlx5_0:1, mlx5_1:1"},
            {
                "backends": ["^libfabric", "^tcp"],
                "backend": RAILS,
            },
        ),
        (
            {},
            {"ucx_devices": "mlx5_0:1,mlx5_1:1"},
            {
                "backends": ["^libfabric", "^tcp"],
                "backend": RAILS,
            },
        ),
        (
            {"KVXFER_BACKENDS": "ucx"},
            {"device_list": "mlx5_0:1"},
            {
                "backend": {"ucx": {"net_devices": "mlx5_0:1"}},
            },
        ),
        (
            {"KVXFER_BACKENDS": "ucx"},
            {"engine_config": "TLS=rc"},
            {"backend": {"ucx": {"tls": "rc"}}},
        ),
        ({}, {"engine_config": "TLS=tcp"}, {"backends": [f"^{b}" for b in ALL[:-1]]}),
        ({"UCX_TLS": "^shm"}, {"engine_config": "TLS=tcp"}, {"backends": ["^shm"]}),
        (
            {"UCX_IB_GID_INDEX": "3", "UCX_IB_SL": "auto", "UCX_IB_PKEY": "0x8001"},
            {},
            {
                "backend": {"verbs": {"gid_index": 3, "p_key": 0x8001}},
            },
        ),
    ],
)
def test_the_agent_s_options(
    variables: dict,
    params: dict,
    options: dict,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _set(monkeypatch, variables)
    assert settings_for("UCX", params, HOST).options(HOST) == options
    assert caplog.text == ""


def test_over_another_backend_ucx_s_variables_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, _RDMA_ONLY)
    assert settings_for("LIBFABRIC", {}, HOST).options(HOST) == {}


def test_libfabric_is_left_out_only_where_it_is_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "^ib")
    no_efa = Host(rdma=("mlx5_0",))
    assert settings_for("UCX", {}, no_efa).options(no_efa) == {"backends": ["^verbs"]}


@pytest.mark.parametrize(
    ("variables", "params", "said"),
    [
        ({"UCX_RNDV_THRESH": "inf"}, {}, "UCX_RNDV_THRESH=inf: kvxfer does not use UCX"),
        ({"UCX_IB_SL": "99"}, {}, "UCX_IB_SL=99: no number from 0 to 15"),
        ({}, {"engine_config": "MAX_RMA_RAILS=4"}, "UCX_MAX_RMA_RAILS=4"),
        ({"KVXFER_BACKENDS": "ucx"}, {"engine_config": "A=b"}, "set UCX_A there"),
        ({}, {"split_batch_size": "8"}, "split_batch_size of backend UCX=8: kvxfer has no such"),
        ({}, {"ucx_error_handling_mode": "none"}, "ucx_error_handling_mode of backend UCX=none"),
    ],
)
def test_what_cannot_be_mapped_is_warned_of_once(
    variables: dict,
    params: dict,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _set(monkeypatch, variables)
    for _ in range(3):
        warn_of_parameters("UCX", params, too_late=False)
        settings_for("UCX", params, HOST)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert said in caplog.text


def test_parameters_of_other_backends_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_parameters("LIBFABRIC", {"device_list": "efa_0"}, too_late=False)
    assert "device_list of backend LIBFABRIC=efa_0: kvxfer has no such" in caplog.text


def test_what_programs_set_whether_asked_or_not_is_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _set(monkeypatch, {"UCX_RCACHE_MAX_UNRELEASED": "1024", "UCX_LOG_LEVEL": "warn"})
    params = {"num_threads": "4", "ucx_error_handling_mode": "peer", "ucx_devices": ""}
    warn_of_parameters("UCX", params, too_late=False)
    settings_for("UCX", params, HOST)
    assert caplog.text == ""


# --- Agents ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("variables", "path"),
    [
        ({}, "loopback"),
        ({"UCX_TLS": "tcp"}, "tcp"),
        ({"UCX_TLS": "sm,cuda_copy"}, "shm"),
        ({"UCX_TLS": "^self,sm", "UCX_NET_DEVICES": "lo"}, "tcp"),
        ({"UCX_TLS": "tcp", "KVXFER_BACKENDS": "shm"}, "shm"),
    ],
)
def test_transfers_take_the_path_that_was_asked_for(
    variables: dict, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _set(monkeypatch, variables)
    caplog.set_level(logging.INFO, "kvxfer.compat.nixl")
    pair = Pair(NIXL, Recorder(NIXL))
    handle = pair.a.initialize_xfer("WRITE", pair.at_a((0, 4096)), pair.at_b((0, 4096)), "b")
    assert run_to_end(pair.a, handle) == "DONE"
    assert f"agent a reaches agent b over {path}" in caplog.text
    assert (pair.b_memory[:4096] == pair.a_memory[:4096]).all()


def test_an_agent_that_cannot_be_made_says_what_asked_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _set(monkeypatch, {"UCX_TLS": "rc", "UCX_NET_DEVICES": "lo"})
    with pytest.raises(bindings.nixlBackendError, match="UCX_TLS=rc.*KVXFER_BACKENDS"):
        api.nixl_agent("a")


def test_one_warning_for_all_agents_of_a_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self,nonsense")
    agents = [api.nixl_agent(name) for name in "abc"]
    assert len(agents) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "UCX_TLS=tcp,self,nonsense: kvxfer has no nonsense" in caplog.text


def test_devices_of_a_second_backend_come_too_late(caplog: pytest.LogCaptureFixture) -> None:
    agent = api.nixl_agent("a")
    agent.create_backend("UCX_MO", {"device_list": "mlx5_0"})
    assert "device_list of backend UCX_MO=mlx5_0: kvxfer's agent was made" in caplog.text
    assert agent.get_backend_params("UCX_MO") == {"device_list": "mlx5_0"}

"""Which address an engine's references carry, and which are refused when it starts. No engine is
started, and no name is looked up but in a table of the test's."""

import socket
from typing import Any

import pytest
from vllm_config import config_of

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
import kvxfer  # noqa: E402
import kvxfer.vllm.addresses  # noqa: E402
from kvxfer.vllm.addresses import OwnAddress, is_loopback, own_address  # noqa: E402
from kvxfer.vllm.settings import Settings  # noqa: E402

_ROUTE = "10.0.0.7"
_NAMES = {"worker-3": "10.1.2.3", "debian": "127.0.1.1", "ip6-localhost": "::1", "localhost": "127.0.0.1"}
_lookup = socket.getaddrinfo
_route_source = kvxfer.vllm.addresses._route_source


def _resolve(host: str, *arguments: Any, flags: int = 0, **options: Any) -> Any:
    if host in _NAMES and not flags & socket.AI_NUMERICHOST:
        host = _NAMES[host]
    return _lookup(host, *arguments, flags=flags | socket.AI_NUMERICHOST, **options)


@pytest.fixture(autouse=True)
def _this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _resolve)
    monkeypatch.setattr(kvxfer.vllm.addresses, "_route_source", lambda: _ROUTE)
    for variable in ("VLLM_HOST_IP", "KVXFER_ADVERTISE"):
        monkeypatch.delenv(variable, raising=False)


def _own(extra: dict[str, Any], **parallel: Any) -> OwnAddress:
    config = config_of(extra, **parallel)
    return own_address(Settings.of(config), config)


def _advertise(address: str, host: str = "0.0.0.0") -> dict[str, Any]:
    return {"host": host, "agent_options": {"advertise": address}}


# host, VLLM_HOST_IP, KVXFER_ADVERTISE, agent_options' advertise: listens at, is reached at.
_TAKEN: dict[str, tuple[dict[str, Any], dict[str, str], str, str]] = {
    "the default route": ({}, {}, _ROUTE, f"{_ROUTE}:7"),
    "VLLM_HOST_IP": ({}, {"VLLM_HOST_IP": "10.1.1.1"}, "10.1.1.1", "10.1.1.1:7"),
    "the option first": ({"host": "10.9.9.9"}, {"VLLM_HOST_IP": "10.1.1.1"}, "10.9.9.9", "10.9.9.9:7"),
    "a name": ({"host": "worker-3"}, {}, "10.1.2.3", "10.1.2.3:7"),
    "IPv6": ({"host": "fd00::2"}, {}, "fd00::2", "[fd00::2]:7"),
    "IPv4 as IPv6": ({"host": "::ffff:10.0.0.9"}, {}, "10.0.0.9", "10.0.0.9:7"),
    "every address": ({"host": "0.0.0.0"}, {}, "0.0.0.0", f"{_ROUTE}:7"),
    "every address, short": ({"host": "0"}, {}, "0.0.0.0", f"{_ROUTE}:7"),
    "every address of IPv6": ({"host": "::"}, {}, "::", f"{_ROUTE}:7"),
    "every address, by VLLM_HOST_IP": ({}, {"VLLM_HOST_IP": "0.0.0.0"}, "0.0.0.0", f"{_ROUTE}:7"),
    "advertise": (_advertise("10.5.5.5"), {}, "0.0.0.0", "10.5.5.5:7"),
    "advertise with a port": (_advertise("10.5.5.5:80"), {}, "0.0.0.0", "10.5.5.5:80"),
    "advertise, IPv6": (_advertise("[fd00::5]:80"), {}, "0.0.0.0", "[fd00::5]:80"),
    "advertise, IPv6 without a port": (_advertise("fd00::5"), {}, "0.0.0.0", "[fd00::5]:7"),
    "advertise a name": (_advertise("worker-3"), {}, "0.0.0.0", "10.1.2.3:7"),
    "KVXFER_ADVERTISE": ({}, {"KVXFER_ADVERTISE": "10.6.6.6"}, "0.0.0.0", "10.6.6.6:7"),
    "KVXFER_ADVERTISE of IPv6": ({}, {"KVXFER_ADVERTISE": "fd00::6"}, "::", "[fd00::6]:7"),
    "KVXFER_ADVERTISE beside VLLM_HOST_IP": (
        {}, {"KVXFER_ADVERTISE": "10.6.6.6", "VLLM_HOST_IP": "10.1.1.1"}, "10.1.1.1", "10.6.6.6:7",
    ),
    "advertise first": (_advertise("10.5.5.5"), {"KVXFER_ADVERTISE": "10.6.6.6"}, "0.0.0.0", "10.5.5.5:7"),
    "behind a forwarded port": (_advertise("10.5.5.5", "127.0.0.1"), {}, "127.0.0.1", "10.5.5.5:7"),
    "this host alone": ({"host": "127.0.0.1"}, {}, "127.0.0.1", "127.0.0.1:7"),
    "this host alone, by name": ({"host": "localhost"}, {}, "127.0.0.1", "127.0.0.1:7"),
    "this host alone, IPv6": ({"host": "ip6-localhost"}, {}, "::1", "[::1]:7"),
}


@pytest.mark.parametrize(("extra", "variables", "listens", "reached"), _TAKEN.values(), ids=_TAKEN)
def test_addresses_that_are_taken(
    extra: dict[str, Any],
    variables: dict[str, str],
    listens: str,
    reached: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    own = _own(extra)
    assert own.listen == listens
    assert own.of(f"{listens}:7") == reached


_REFUSED: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "a name that is loopback here": ({"host": "debian"}, {}, '"host" in kv_connector_extra_config is'),
    "the same by VLLM_HOST_IP": ({}, {"VLLM_HOST_IP": "debian"}, "VLLM_HOST_IP is 'debian', which is 127.0.1.1"),
    "a name that nobody knows": ({"host": "wroker-3"}, {}, "is 'wroker-3', which cannot be resolved"),
    "within one link": ({"host": "fe80::1%lo"}, {}, "an address within one link"),
    "advertise to nobody": (_advertise("0.0.0.0"), {}, '"advertise" in "agent_options" is \'0.0.0.0\''),
    "advertise to nobody, IPv6": (_advertise("::"), {}, "cannot be connected to"),
    "advertise what is loopback here": (_advertise("debian"), {}, "which is 127.0.1.1 here"),
    "advertise no port": (_advertise("10.5.5.5:http"), {}, "no host, and no host:port"),
    "KVXFER_ADVERTISE to nobody": ({}, {"KVXFER_ADVERTISE": "0"}, "KVXFER_ADVERTISE is '0', which cannot"),
    "a loopback listener behind a name": (_advertise("10.5.5.5", "debian"), {}, "which is 127.0.1.1 here"),
}


@pytest.mark.parametrize(("extra", "variables", "says"), _REFUSED.values(), ids=_REFUSED)
def test_addresses_that_are_refused(
    extra: dict[str, Any], variables: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="KvxferConnector: ") as raised:
        _own(extra)
    assert says in str(raised.value)


def test_every_address_and_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvxfer.vllm.addresses, "_route_source", lambda: "")
    for extra in ({}, {"host": "0.0.0.0"}, {"host": "::"}):
        with pytest.raises(ValueError, match="route to (any )?other"):
            _own(extra)
    assert _own(_advertise("10.5.5.5")).reached == "10.5.5.5"
    assert _own({"agent_options": {"advertise": "10.5.5.5"}}) == OwnAddress("0.0.0.0", "10.5.5.5")
    monkeypatch.setenv("KVXFER_ADVERTISE", "10.5.5.5:80")
    assert _own({}) == OwnAddress("0.0.0.0", "10.5.5.5", 80)


_LOOPBACK = ["127.0.0.1", "localhost", "::1", "::ffff:127.0.0.1", "ip6-localhost", "127.1", "127.0.1.1"]


@pytest.mark.parametrize("host", _LOOPBACK)
def test_loopback_beside_ranks_on_other_hosts(host: str) -> None:
    others: list[dict[str, Any]] = [
        {"master_addr": "10.0.0.1"},
        {"data_parallel_master_ip": "worker-3"},
        {"data_parallel_master_ip": "nobody-knows-it"},
        {"nnodes": 2},
    ]
    for other in others:
        with pytest.raises(ValueError, match="has ranks on other hosts"):
            _own({"host": host}, **other)
        with pytest.raises(ValueError, match="has ranks on other hosts"):
            _own(_advertise(host), **other)


@pytest.mark.parametrize("name", [*_LOOPBACK, "0", "0.0.0.0", "::", ""])
def test_names_of_this_host_are_no_other_hosts(name: str) -> None:
    own = _own({"host": "127.0.0.1"}, master_addr=name, data_parallel_master_ip=name)
    assert own.reached == "127.0.0.1"


def test_an_address_of_this_host_is_no_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the one that vLLM itself finds where data parallelism begins."""
    if not (route := _route_source()):
        pytest.skip("this host has no address but loopback's")
    for option in ("master_addr", "data_parallel_master_ip"):
        assert _own({"host": "127.0.0.1"}, **{option: route}).reached == "127.0.0.1"
    with pytest.raises(ValueError, match="has ranks on other hosts"):
        _own({"host": "127.0.0.1"}, master_addr="192.0.2.1")


@pytest.mark.parametrize(
    "several", [{"tensor_parallel_size": 2}, {"data_parallel_size": 2}, {"data_parallel_index": 1}]
)
def test_one_port_cannot_be_that_of_several_workers(several: dict[str, int]) -> None:
    (option,) = several
    with pytest.raises(ValueError, match=rf"with one port for all workers \({option} is "):
        _own(_advertise("10.5.5.5:80"), **several)
    assert _own(_advertise("10.5.5.5"), **several).reached == "10.5.5.5"


def test_a_rank_that_is_started_by_a_command_of_its_own_has_a_port_of_its_own() -> None:
    rank = {"data_parallel_size": 2, "data_parallel_index": 1, "data_parallel_external_lb": True}
    assert _own(_advertise("10.5.5.5:80"), **rank).reached_port == 80
    with pytest.raises(ValueError, match="tensor_parallel_size is 2"):
        _own(_advertise("10.5.5.5:80"), tensor_parallel_size=2, **rank)


def test_what_is_loopback() -> None:
    assert all(is_loopback(each) for each in _LOOPBACK)
    assert not any(is_loopback(each) for each in ("10.0.0.1", "worker-3", "nobody", "0.0.0.0", ""))


def _skip_without_ipv6() -> None:
    """Where it is off nothing listens at ::, and the agent says so."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError as error:
        pytest.skip(f"IPv6 is off here: {error}")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_agent_is_met_at_the_address_that_references_carry(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that listens at every address, and whose listen_address nobody can connect to."""
    monkeypatch.undo()
    if host == "::":
        _skip_without_ipv6()
    if not kvxfer.vllm.addresses._route_source():
        monkeypatch.setattr(kvxfer.vllm.addresses, "_route_source", lambda: "127.0.0.1")
    own = _own({"host": host})
    listen = f"[{own.listen}]:0" if ":" in own.listen else f"{own.listen}:0"
    with (
        kvxfer.Agent("met", listen=listen, backends=["tcp"], serve_metadata=True) as met,
        kvxfer.Agent("meets", backends=["tcp"]) as meets,
    ):
        name = meets.add_peer(kvxfer.fetch_metadata(own.of(met.listen_address), 5.0))
        meets.notify(name, b"here").wait(10.0)
        assert met.wait_notification(10.0).payload == b"here"

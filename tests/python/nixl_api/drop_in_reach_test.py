"""Peers on other hosts, and an agent that only this host reaches."""

import dataclasses
import os
from types import SimpleNamespace

import pytest
from kvxfer.compat.nixl import api, bindings, host, logs, metadata
from kvxfer.compat.nixl.remotes import Remotes
from nixl_record import Pair, Recorder, run_to_end

NIXL = SimpleNamespace(api=api, bindings=bindings, is_drop_in=True)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("KVXFER_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(logs, "_warned", set())
    monkeypatch.setattr("kvxfer.compat.nixl.reach.own_address", lambda: "10.0.0.1")


class _Agent:
    """kvxfer's, that takes any metadata."""

    def __init__(self, listen_address: str = "127.0.0.1:5") -> None:
        self.listen_address = listen_address

    def add_peer(self, blob: bytes) -> str:
        return "b"


def _load(machine: str, listen_address: str = "127.0.0.1:5", name: str = "b") -> Remotes:
    remotes = Remotes("a")
    blob = metadata.Metadata(
        agent=name,
        incarnation="0123",
        sequence=1,
        connection=True,
        backends=["UCX"],
        kvxfer=b"opaque",
        machine=machine,
    )
    remotes.load(_Agent(listen_address), {"UCX": 1}, metadata.encode(blob))
    return remotes


@pytest.mark.parametrize(
    ("listens", "variables"),
    [
        ("127.0.0.1:5", {}),
        ("[::1]:5", {"KVXFER_LISTEN": "[::1]:0"}),
        ("[::ffff:127.0.0.1]:5", {}),
        ("", {}),
        ("", {"KVXFER_LISTEN": "localhost:0"}),
        ("127.0.0.1:5", {"KVXFER_TCP_ADDRESSES": "lo"}),
    ],
)
def test_a_peer_on_another_host_that_cannot_connect(
    listens: str, variables: dict, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in ("b", "c"):
        remotes = _load("another machine", listens, name)
        assert "KVXFER_LISTEN=10.0.0.1:0" in remotes.get(name).hint
    # Expect one line, although there are two peers.
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "KVXFER_LISTEN=10.0.0.1:0" in caplog.text


@pytest.mark.parametrize(
    ("machine", "listens", "variables"),
    [
        (host.machine(), "127.0.0.1:5", {}),
        ("", "127.0.0.1:5", {}),
        ("another machine", "0.0.0.0:5", {}),
        ("another machine", "10.0.0.1:5", {}),
        ("another machine", "[fd00::2]:5", {}),
        ("another machine", "127.0.0.1:5", {"KVXFER_ADVERTISE": "10.0.0.1"}),
        ("another machine", "127.0.0.1:5", {"KVXFER_TCP_ADDRESSES": "lo,eth0"}),
        ("another machine", "", {"KVXFER_LISTEN": "10.0.0.1:0"}),
    ],
)
def test_a_peer_that_can_connect(
    machine: str,
    listens: str,
    variables: dict,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _load(machine, listens).get("b").hint == ""
    assert caplog.text == ""


def test_a_wrong_advertised_address_is_the_one_to_change(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVXFER_ADVERTISE", "127.0.0.1")
    _load("another machine", "0.0.0.0:5")
    assert "KVXFER_ADVERTISE=10.0.0.1:0" in caplog.text


def test_metadata_says_where_it_is_from() -> None:
    agent = api.nixl_agent("a")
    assert metadata.decode(agent.get_agent_metadata()).machine == host.machine() != ""


def test_the_error_of_a_transfer_says_so() -> None:
    pair = Pair(NIXL, Recorder(NIXL))
    blob = metadata.decode(pair.b.get_agent_metadata())
    pair.a.remove_remote_agent("b")
    pair.a.add_remote_agent(metadata.encode(dataclasses.replace(blob, machine="another machine")))
    handle = pair.a.initialize_xfer("WRITE", pair.at_a((0, 64)), pair.at_b((0, 64)), "b")
    assert run_to_end(pair.a, handle) == "DONE"
    pair.b = None
    with pytest.raises(bindings.nixlRemoteDisconnectError, match="KVXFER_LISTEN=10.0.0.1:0"):
        run_to_end(pair.a, handle)

"""Peers on other hosts, and an agent that only this host reaches."""

import base64
import dataclasses
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from kvxfer.compat.nixl import api, bindings, host, logs, metadata, reach
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
    assert "set KVXFER_ADVERTISE=10.0.0.1 here" in caplog.text


def test_only_an_address_is_repeated_from_metadata() -> None:
    assert "10.0.0.2:0" in reach.remedy_there("b", "10.0.0.2")
    assert "[fd00::2]:0" in reach.remedy_there("b", "fd00::2")
    for text in ("", "\x1b[2J", "host"):
        assert reach.remedy_there("b", text) == reach.REMEDY


def test_metadata_says_where_it_is_from() -> None:
    agent = api.nixl_agent("a")
    said = metadata.decode(agent.get_agent_metadata())
    assert said.machine == host.machine() != ""
    assert said.address == host.own_address()


_ELSEWHERE = """
import base64, sys
from kvxfer.compat.nixl import api
print(base64.b64encode(api.nixl_agent("b").get_agent_metadata()).decode())
"""


def _metadata_of_another_network() -> metadata.Metadata:
    """Of an agent with the default settings, in a network namespace of its own."""
    command = ["unshare", "--map-root-user", "--net", sys.executable, "-c", _ELSEWHERE]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if said.returncode != 0:
        pytest.skip(f"there is no other network namespace here: {said.stderr.strip()}")
    return metadata.decode(base64.b64decode(said.stdout))


def test_two_agents_that_both_listen_on_loopback(caplog: pytest.LogCaptureFixture) -> None:
    """The default on two hosts. Expect the remedy for this side and for the other one."""
    blob = dataclasses.replace(_metadata_of_another_network(), address="10.0.0.2")
    agent = api.nixl_agent("a")
    with pytest.raises(bindings.nixlBackendError, match=r"agent 'b' KVXFER_LISTEN=10\.0\.0\.2:0"):
        agent.add_remote_agent(metadata.encode(blob))
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 1 and "set KVXFER_LISTEN=10.0.0.1:0 here" in warnings[0]


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

"""What a peer says never raises out of a poll: names that are not UTF-8, or would forge a log line."""

import socket
import struct
import time

import kvxfer
import pytest

CONTROL, DATA = 1, 2
PATIENCE = 20.0


def preamble(role: int, target: bytes, link: bytes = bytes(16)) -> bytes:
    life = 1 if role == DATA else 0
    return b"KVXP" + struct.pack("<HBBBBHI", 3, role, 0, 1, 0, 0, life) + target + link


def hello(name: bytes, target: bytes) -> bytes:
    body = struct.pack("<HH", 1, 5) + bytes(range(1, 17)) + target
    body += struct.pack("<QQ", 1, 0) + struct.pack("<IB", 1, 0)
    body += struct.pack("<I", len(name)) + name
    return struct.pack("<BBHIQQ", 1, 0, 0, len(body), 0, 0) + body


def receive(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = stream.recv(size - len(data))
        if not part:
            break
        data += part
    return data


def dial(agent: kvxfer.Agent) -> socket.socket:
    host, port = agent.listen_address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def say_hello(agent: kvxfer.Agent, name: bytes) -> bytes:
    """As a peer over tcp that calls itself `name`; what the agent answers, up to its end."""
    target = bytes.fromhex(agent.incarnation)
    with dial(agent) as control, dial(agent) as data:
        control.sendall(preamble(CONTROL, target))
        welcome = receive(control, 32)
        data.sendall(preamble(DATA, target, welcome[16:32]))
        assert len(receive(control, 8)) == 8  # the link is whole
        message = hello(name, target)
        control.sendall(struct.pack("<II", len(message), 1) + message)
        control.settimeout(2)
        try:
            return receive(control, 1 << 20)
        except TimeoutError:
            return b"it is taken"


@pytest.mark.parametrize("name", [b"\xff", b"x\nkvxfer error: forged", b"\x1b[2J", b"\xc3"])
def test_a_name_that_cannot_be_shown_is_refused_and_raises_nowhere(name, capfd):
    with kvxfer.Agent("victim", backends=["tcp"]) as agent:
        answer = say_hello(agent, name)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            assert agent.poll_peer_event() is None
            assert agent.poll_notifications() == []
            assert agent.poll_notification() is None
            assert agent.poll_kv_event() is None
            time.sleep(0.01)
        assert b"UTF-8 without control characters" in answer
        # It serves others as before.
        with kvxfer.Agent("honest", backends=["tcp"]) as honest:
            honest.add_peer(agent.metadata())
            honest.notify("victim", b"hello").wait(PATIENCE)
            assert agent.wait_notification(PATIENCE).payload == b"hello"
    lines = capfd.readouterr().err.splitlines()
    assert len([line for line in lines if "refused a connection" in line]) == 1
    assert not [line for line in lines if line.startswith("kvxfer error") or "\x1b" in line]


def test_own_names_are_held_to_the_same():
    for name in ("a\nb", "\x1b[2J", "\u2028"):
        with pytest.raises(kvxfer.InvalidArgument, match="UTF-8 without control characters"):
            kvxfer.Agent(name)
    with kvxfer.Agent("größe", backends=["loopback"]) as agent:
        assert agent.name == "größe"

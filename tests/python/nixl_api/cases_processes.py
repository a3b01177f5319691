"""Two processes: data and notifications between them; one that is killed."""

import base64
import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
from nixl_record import descs, load, notifications, run_to_end, wait_until

SIZE = 1 << 20
DISCONNECTED = "raises nixl._bindings.nixlRemoteDisconnectError"


class _Child:
    """Agent b in a process of its own; it writes down what it is told, and answers it."""

    def __init__(self, nixl: Any) -> None:
        kind = "drop_in" if nixl.is_drop_in else "real"
        self.process = subprocess.Popen(
            [sys.executable, __file__, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        blob, address = self.process.stdout.readline().split()
        self.metadata, self.address = base64.b64decode(blob), int(address)

    def tell(self, metadata: bytes) -> None:
        print(base64.b64encode(metadata).decode(), file=self.process.stdin, flush=True)

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _child_main(implementation: str) -> None:
    nixl = load(implementation)
    memory = np.zeros(SIZE, dtype=np.uint8)
    agent = nixl.api.nixl_agent("b")
    agent.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
    print(base64.b64encode(agent.get_agent_metadata()).decode(), memory.ctypes.data, flush=True)
    agent.add_remote_agent(base64.b64decode(sys.stdin.readline()))
    while True:
        for sender, messages in agent.get_new_notifs().items():
            for message in messages:
                print(f"{sender} {message.decode()} {int(memory.sum())}", flush=True)
                agent.send_notif(sender, b"heard " + message)
        time.sleep(0.002)


def _agent(nixl: Any, rec: Any) -> tuple[Any, Any, Any]:
    memory = rec.buffer("a", SIZE)
    memory[:] = 1
    agent = nixl.api.nixl_agent("a")
    agent.test_memory = memory
    agent.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
    child = _Child(nixl)
    agent.add_remote_agent(child.metadata)
    child.tell(agent.get_agent_metadata())
    return agent, child, memory


def _transfer(nixl: Any, agent: Any, child: Any, operation: str, message: bytes) -> Any:
    ours = descs(nixl, [(agent.test_memory.ctypes.data, SIZE, 0)])
    return agent.initialize_xfer(
        operation, ours, descs(nixl, [(child.address, SIZE, 0)]), "b", message
    )


def case_data_and_notifications(nixl: Any, rec: Any) -> None:
    agent, child, memory = _agent(nixl, rec)
    try:
        handle = _transfer(nixl, agent, child, "WRITE", b"written")
        rec.call("write", run_to_end, agent, handle)
        rec.call("b was told, with all bytes there", child.line)
        rec.call("it answers", notifications, agent, 1)
        rec.call("send", agent.send_notif, "b", b"alone")
        rec.call("b was told", child.line)
        notifications(agent, 1)
        memory[:] = 0
        rec.call("read", run_to_end, agent, _transfer(nixl, agent, child, "READ", b"read"))
        rec.check("all of it", memory.all())
        rec.call("b was told", child.line)
    finally:
        child.kill()


def case_killed(nixl: Any, rec: Any) -> None:
    agent, child, _ = _agent(nixl, rec)
    handle = _transfer(nixl, agent, child, "WRITE", b"one")
    rec.call("write", run_to_end, agent, handle)
    rec.call("b was told", child.line)
    notifications(agent, 1)
    child.kill()
    rec.call("write to the dead", run_to_end, agent, handle)
    rec.call("its state", agent.check_xfer_state, handle)
    rec.call("once more", run_to_end, agent, handle)
    rec.call("send", wait_until, lambda: _fails(agent))
    rec.call("its metadata is still there", agent.check_remote_metadata, "b")
    rec.call(
        "read from the dead", lambda: run_to_end(agent, _transfer(nixl, agent, child, "READ", b""))
    )
    rec.either("connect", {"None", DISCONNECTED}, agent.make_connection, "b")
    rec.call("release", agent.release_xfer_handle, handle)
    _add_the_next(nixl, rec, agent)


def _fails(agent: Any) -> str:
    """The error of sending, once there is one."""
    try:
        agent.send_notif("b", b"x")
    except Exception as error:
        return type(error).__name__
    return ""


def _add_the_next(nixl: Any, rec: Any, agent: Any) -> None:
    """Another process of the same name."""
    child = _Child(nixl)
    try:
        rec.call("add its successor", agent.add_remote_agent, child.metadata)
        rec.call("remove", agent.remove_remote_agent, "b")
        rec.call("add its successor", agent.add_remote_agent, child.metadata)
        child.tell(agent.get_agent_metadata())
        rec.call("write", run_to_end, agent, _transfer(nixl, agent, child, "WRITE", b"two"))
        rec.call("told", child.line)
    finally:
        child.kill()


def case_agent_deleted(nixl: Any, rec: Any) -> None:
    """An agent that is deleted is gone for the others, without the end of its process."""
    agent, other = nixl.api.nixl_agent("a"), nixl.api.nixl_agent("b")
    agent.add_remote_agent(other.get_agent_metadata())
    rec.call("send", agent.send_notif, "b", b"x")
    rec.call("told", notifications, other, 1)
    del other
    rec.call("it is gone", wait_until, lambda: _fails(agent))


if __name__ == "__main__":
    _child_main(sys.argv[1])

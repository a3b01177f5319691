"""The drop-in from the outside: the command that runs others with it, the end of processes, the
listener against wrong peers, peers that stop."""

import base64
import os
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest
from nixl_comparison import HERE, drop_in_path, environment


def _run(*command: str, **changed: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **changed}
    )


def _compat(*arguments: str) -> subprocess.CompletedProcess:
    return _run(sys.executable, "-m", "kvxfer.compat.nixl", *arguments)


def _script(text: str, **changed: str) -> subprocess.CompletedProcess:
    env = {**environment("drop_in"), **changed}
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, env=env, cwd=HERE
    )


WHERE = "import nixl, nixl_cu12, nixl_cu13; print(nixl.nixl_agent.__module__)"


def test_path() -> None:
    said = _compat("--path")
    assert said.returncode == 0
    assert os.path.isfile(os.path.join(said.stdout.strip(), "nixl", "__init__.py"))


def test_runs_a_command() -> None:
    said = _compat("--", sys.executable, "-c", WHERE)
    assert (said.stdout, said.returncode) == ("kvxfer.compat.nixl.api\n", 0)


def test_without_dashes_too() -> None:
    assert _compat(sys.executable, "-c", WHERE).stdout == "kvxfer.compat.nixl.api\n"


def test_what_the_command_starts_has_it_too() -> None:
    text = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WHERE!r}], check=True)"
    assert _compat("--", sys.executable, "-c", text).stdout == "kvxfer.compat.nixl.api\n"


def test_the_exit_status_is_the_command_s() -> None:
    assert _compat("--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7


def test_a_path_of_the_caller_s_stays() -> None:
    look = "import os; print(os.environ['PYTHONPATH'])"
    said = _compat("--", sys.executable, "-c", look).stdout.strip().split(os.pathsep)
    given = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    assert said[0] == _compat("--path").stdout.strip()
    assert [folder for folder in said if folder in given] == given


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "no command"),
        (("--nonsense",), 2, "unknown option --nonsense"),
        (("--", "no-such-command-9"), 127, "no such command: no-such-command-9"),
    ],
)
def test_what_is_wrong_with_a_call(arguments: tuple, status: int, said: str) -> None:
    result = _compat(*arguments)
    assert result.returncode == status and said in result.stderr


def test_help() -> None:
    said = _compat("--help")
    assert said.returncode == 0 and "COMMAND" in said.stdout and "KVXFER_LISTEN" in said.stdout


AGENTS = """
import numpy as np, nixl._api as api, nixl._bindings as bindings
a = api.nixl_agent("a", api.nixl_agent_config(True, True, 0))
b = api.nixl_agent("b")
m = np.zeros(1 << 24, dtype=np.uint8)
p = m.ctypes.data
for agent in (a, b):
    agent.register_memory([(p, m.nbytes, 0, "")], "DRAM")
a.add_remote_agent(b.get_agent_metadata())
half = m.nbytes // 2
lists = [bindings.nixlXferDList(bindings.DRAM_SEG, [(at, half, 0)]) for at in (p, p + half)]
handle = a.initialize_xfer("WRITE", *lists, "b", b"x")
dlist = a.prep_xfer_dlist("", lists[0])
a.transfer(handle)
a.send_local_metadata("127.0.0.1", 1)
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "del a, b",
        "del a; handle = None",
        "del b",
        "raise SystemExit(0)",
        "import sys; sys.modules['kept'] = (a, b, handle, dlist)",
        "a.me = a; b.other = a; a.other = b",
        "import gc; gc.disable(); a.me = a",
        "import threading; threading.Thread(target=lambda: a.get_new_notifs()).start()",
    ],
)
def test_a_process_ends_cleanly(end: str) -> None:
    said = _script(AGENTS + end)
    lines = [line for line in said.stderr.splitlines() if "kvxfer warning" not in line]
    lines = [line for line in lines if "was not reached" not in line]
    assert (said.returncode, lines) == (0, []), said.stderr


LISTENER = """
import sys, time, nixl._api as api
a = api.nixl_agent("a", api.nixl_agent_config(enable_listen_thread=True, listen_port=0))
from kvxfer.compat.nixl import exchange
import gc
print([o for o in gc.get_objects() if isinstance(o, exchange.Listener)][0].port, flush=True)
for line in sys.stdin:
    print(a.check_remote_metadata(line.strip()), flush=True)
"""


@pytest.fixture
def listener():
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment("drop_in"),
    )
    process.port = int(process.stdout.readline())
    yield process
    process.stdin.close()
    assert process.wait(10) == 0


def _introduce(port: int) -> None:
    text = f"""
import time, nixl._api as api
b = api.nixl_agent("b")
b.send_local_metadata("127.0.0.1", {port})
time.sleep(0.5)
"""
    assert _script(text).returncode == 0


def _knows(process: subprocess.Popen, name: str) -> bool:
    print(name, file=process.stdin, flush=True)
    return process.stdout.readline().strip() == "True"


def test_the_listener_survives_wrong_peers(listener: subprocess.Popen) -> None:
    header = struct.Struct("<8sBQ")
    kept = []
    for data in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"",
        b"\0" * 17,
        b"kvx",
        os.urandom(4096),
        header.pack(b"kvxnixl?", 1, 1 << 60),
        header.pack(b"kvxnixl?", 1, 1000) + b"short",
        header.pack(b"kvxnixl?", 9, 0),
        header.pack(b"kvxnixl?", 1, 4) + b"junk",
        header.pack(b"kvxnixl?", 3, 1) + b"\xff",
        header.pack(b"kvxnixl?", 3, 2) + b"zz",
    ):
        sock = socket.create_connection(("127.0.0.1", listener.port), timeout=5)
        sock.sendall(data)
        kept.append(sock)  # some of them never close
    _introduce(listener.port)
    assert _knows(listener, "b")
    for sock in kept:
        sock.close()


def test_the_listener_is_on_loopback() -> None:
    text = """
import nixl._api as api, gc
from kvxfer.compat.nixl import exchange
a = api.nixl_agent("a", api.nixl_agent_config(enable_listen_thread=True, listen_port=0))
print([o for o in gc.get_objects() if isinstance(o, exchange.Listener)][0]._socket.getsockname()[0])
"""
    assert _script(text).stdout == "127.0.0.1\n"
    assert _script(text, KVXFER_LISTEN="127.0.0.2:0").stdout == "127.0.0.2\n"


STOPPED = """
import base64, sys, time, numpy as np, nixl._api as api, nixl._bindings as bindings
a = api.nixl_agent("a")
m = np.zeros(1 << 20, dtype=np.uint8)
a.register_memory([(m.ctypes.data, m.nbytes, 0, "")], "DRAM")
blob, address = sys.argv[1], int(sys.argv[2])
a.add_remote_agent(base64.b64decode(blob))
one = lambda at: bindings.nixlXferDList(bindings.DRAM_SEG, [(at, 1 << 20, 0)])
handle = a.initialize_xfer("WRITE", one(m.ctypes.data), one(address), "b", b"x")
state, begin = a.transfer(handle), time.monotonic()
try:
    while state == "PROC":
        state = a.check_xfer_state(handle)
        time.sleep(0.01)
except Exception as error:
    state = type(error).__name__
print(state, round(time.monotonic() - begin, 1))
"""


def test_a_transfer_to_a_stopped_peer_ends_by_its_deadline() -> None:
    env = {**environment("drop_in"), "KVXFER_BACKENDS": "tcp"}
    child = subprocess.Popen(
        [sys.executable, "cases_processes.py", "drop_in"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        cwd=HERE,
    )
    try:
        blob, address = child.stdout.readline().split()
        assert base64.b64decode(blob).startswith(b"kvxnixl1")
        os.kill(child.pid, signal.SIGSTOP)
        said = subprocess.run(
            [sys.executable, "-c", STOPPED, blob, address],
            capture_output=True,
            text=True,
            env={**env, "KVXFER_NIXL_DEADLINE": "1"},
            timeout=30,
        )
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    state, seconds = said.stdout.split()
    assert state in ("nixlBackendError", "nixlRemoteDisconnectError"), said.stderr
    assert float(seconds) < 3


def test_a_wrong_deadline_is_said() -> None:
    said = _script("import nixl._api as api; api.nixl_agent('a')", KVXFER_NIXL_DEADLINE="soon")
    assert said.returncode == 0 and "KVXFER_NIXL_DEADLINE" in said.stderr


def test_importing_is_cheap() -> None:
    """torch is not imported for its tensors to be taken."""
    text = "import sys, nixl._api; print('torch' in sys.modules)"
    begin = time.monotonic()
    assert _script(text).stdout == "False\n"
    assert time.monotonic() - begin < 10


def test_the_path_is_the_package_s() -> None:
    assert drop_in_path().endswith(os.path.join("compat", "nixl", "site"))


FORKED = """
import os, sys, time, warnings, nixl._api as api
warnings.simplefilter("ignore")
a = api.nixl_agent("a", api.nixl_agent_config(enable_listen_thread=True, listen_port=0))
from kvxfer.compat.nixl import exchange
import gc
port = [o for o in gc.get_objects() if isinstance(o, exchange.Listener)][0].port
a.send_local_metadata("127.0.0.1", 1)
child = os.fork()
if child == 0:
    END
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
b = api.nixl_agent("b")
b.send_local_metadata("127.0.0.1", port)
end = time.monotonic() + 5
while not a.check_remote_metadata("b") and time.monotonic() < end:
    time.sleep(0.01)
print(a.check_remote_metadata("b"))
"""


@pytest.mark.parametrize("end", ["pass", "del a; gc.collect()", "gc.collect(); sys.exit(0)"])
def test_a_forked_child_leaves_its_parent_s_listener(end: str) -> None:
    said = _script(FORKED.replace("END", end))
    assert (said.stdout, said.returncode) == ("True\n", 0), said.stderr


def test_a_forked_worker_of_multiprocessing_leaves_it_too() -> None:
    text = FORKED.replace("child = os.fork()", "child = None").replace(
        "assert os.waitpid(child, 0)[1] == 0",
        """
import multiprocessing
def work():
    global a
    del a
    gc.collect()
worker = multiprocessing.get_context("fork").Process(target=work)
worker.start()
worker.join(20)
assert worker.exitcode == 0""",
    )
    said = _script(text.replace("END", "pass"))
    assert (said.stdout, said.returncode) == ("True\n", 0), said.stderr

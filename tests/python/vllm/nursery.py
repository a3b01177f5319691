"""Engines that are forked from a process that has imported vLLM: the import is most of what the start
of an engine takes, and a file of tests starts dozens.

`nursery.py PARENT_PID FD` is that process. It is asked over the socket FD, a message for each engine:
its environment and config, with four descriptors: what becomes standard input, output and error, and a
pipe that is told "pid N" at first and "end STATUS" at last.
"""

import atexit
import contextlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO, Any

from engine_child import die_with, import_vllm, run, shift_memory

_MESSAGE_LIMIT = 1 << 17
_IMPORT_LIMIT_S = 120.0
_AT_IMPORT = (
    *("PYTHONPATH", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "LD_PRELOAD", "OMP_NUM_THREADS"),
    *("VLLM_LOGGING_LEVEL", "VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_CONFIG_PATH"),
)
"""What a process takes from its environment as it begins or imports vLLM, and not again."""


class ForkedEngine:
    """As subprocess.Popen, of which it has what EngineProcess uses."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], told: IO[bytes]) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self._told = told
        self._status: int | None = None
        self.pid = self._next(_IMPORT_LIMIT_S, "pid")

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self._status

    def wait(self, limit_s: float) -> int:
        if self._status is None:
            self._status = self._next(limit_s, "end")
            self._told.close()
        return self._status

    def _next(self, limit_s: float, what: str) -> int:
        if not select.select([self._told], [], [], limit_s)[0]:
            raise subprocess.TimeoutExpired("an engine", limit_s)
        words = self._told.readline().decode().split()
        if not words and what == "end":
            return -signal.SIGKILL  # the nursery has died, and the engine with it
        if words[:1] != [what]:
            raise RuntimeError(f"the nursery said {words} and not {what}: has it died?")
        return int(words[1])


class Nursery:
    """Not safe for use by two threads."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(os.getpid()), str(theirs.fileno())],
                env=env,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def start(self, env: Mapping[str, str], config: Mapping[str, Any], log: int) -> ForkedEngine:
        stdin, commands = os.pipe()
        replies, stdout = os.pipe()
        told, tell = os.pipe()
        ours = os.fdopen(commands, "wb", 0), os.fdopen(replies, "rb", 0), os.fdopen(told, "rb", 0)
        message = json.dumps({"env": dict(env), "config": config}).encode()
        try:
            socket.send_fds(self._socket, [message], [stdin, stdout, log, tell])
        finally:
            for theirs in (stdin, stdout, tell):
                os.close(theirs)
        return ForkedEngine(*ours)

    def lives(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Its engines end with it."""
        self._socket.close()
        self._process.wait(60)


_nurseries: dict[tuple[str, ...], Nursery] = {}


def start_engine_process(
    env: Mapping[str, str], config: Mapping[str, Any], log: int
) -> ForkedEngine:
    """An engine of this environment, from a nursery that is started where there is none for it."""
    key = tuple(env.get(name, "") for name in _AT_IMPORT)
    if key not in _nurseries or not _nurseries[key].lives():
        _nurseries[key] = nursery = Nursery(env)
        atexit.register(nursery.close)
    return _nurseries[key].start(env, config, log)


_set_by_import: dict[str, str] = {}
"""What vLLM puts into the environment as it is imported."""


def _fork_until_one_is_asked_for(requests: socket.socket) -> dict[str, Any]:
    """In the nursery it does not return; in an engine it returns the config."""
    nursery = os.getpid()
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    tells: dict[int, int] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is not requests:
                selector.unregister(key.fd)
                _tell_end(key.data, key.fd, tells.pop(key.data))
                continue
            message, fds, _, _ = socket.recv_fds(requests, _MESSAGE_LIMIT, 4)
            if not message:
                sys.exit(0)
            pid = os.fork()
            if pid == 0:
                others = [key.fd for key in selector.get_map().values()] + list(tells.values())
                selector.close()
                for fd in others:
                    os.close(fd)
                requests.detach()
                return _become(nursery, fds, json.loads(message))
            for fd in fds[:3]:
                os.close(fd)
            tells[pid] = fds[3]
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)


def _tell_end(pid: int, pidfd: int, tell: int) -> None:
    """Its number is free for others only when whoever may signal it has been told."""
    ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    with contextlib.suppress(BrokenPipeError):
        os.write(tell, f"end {status}\n".encode())
    os.close(tell)
    os.waitpid(pid, 0)
    os.close(pidfd)


def _become(nursery: int, fds: list[int], asked: dict[str, Any]) -> dict[str, Any]:
    die_with(nursery)
    shift_memory()
    os.setsid()
    for standard, fd in enumerate(fds[:3]):
        os.dup2(fd, standard)
        os.close(fd)
    os.environ.clear()
    os.environ.update(asked["env"] | _set_by_import)
    tempfile.tempdir = None
    os.write(fds[3], f"pid {os.getpid()}\n".encode())
    os.close(fds[3])
    config: dict[str, Any] = asked["config"]
    return config


def main() -> None:
    die_with(int(sys.argv[1]))
    begin = time.monotonic()
    before = dict(os.environ)
    import_vllm()
    _set_by_import.update({k: v for k, v in os.environ.items() if before.get(k) != v})
    print(f"nursery: vLLM imported in {time.monotonic() - begin:.1f} s", file=sys.stderr)
    run(_fork_until_one_is_asked_for(socket.socket(fileno=int(sys.argv[2]))))


if __name__ == "__main__":
    main()

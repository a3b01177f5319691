"""A process that answers JSON in lines, as engine_child.py, driven from a test.

It never outlives the test's process: the kernel kills it with its parent, and close() kills its
process group. Every call has a time limit; what fails shows the end of the engine's log.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, ClassVar

from nursery import ForkedEngine

_START_LIMIT_S = 120.0


class EngineError(Exception):
    """An engine ended or did not answer in time."""


class EngineProcess:
    """One engine. Not safe for use by two threads."""

    child: ClassVar[Path]
    """What it runs."""

    _up: dict[str, Any] | None
    _failed: str
    _unread: bytes
    _process: subprocess.Popen[bytes] | ForkedEngine
    _commands: IO[bytes]
    _replies: IO[bytes]

    def __init__(
        self, name: str, config: Mapping[str, Any], env: Mapping[str, str], logs: Path
    ) -> None:
        """Starts the process and does not wait until it is up: engines that start together share the
        cores."""
        self.name = name
        self.config = config
        self._env = env
        self._log = logs / f"{name}.log"
        self._start()

    def restart(self, config: Mapping[str, Any] | None = None) -> None:
        """The same engine anew: its environment, log and, unless another is given, config; it is
        ended if it still runs. Returns at once, as the constructor."""
        self.close()
        self.config = config or self.config
        self._start()

    def wait_until_up(self) -> dict[str, Any]:
        """What the engine says of its start: seconds, the file of nixl._api, its KV groups, and how
        many blocks are free before the first request."""
        if self._up is None:
            self._up = dict(self._receive(_START_LIMIT_S))
        return self._up

    def is_up(self) -> bool:
        """Whether wait_until_up() would return at once."""
        return self._up is not None or bool(self._selector.select(0))

    def call(self, command: str, limit_s: float = 60.0, **arguments: Any) -> Any:
        """After one call that failed the others do at once: the engine is where nobody knows."""
        if self._failed:
            raise EngineError(f"engine {self.name} failed before: {self._failed}")
        self.wait_until_up()
        try:
            self._commands.write(json.dumps({"do": command, **arguments}).encode() + b"\n")
            self._commands.flush()
        except OSError as error:
            raise self._failure(f"cannot be told to {command}: {error}") from None
        return self._receive(limit_s)

    def runs(self) -> bool:
        """Also while it starts, or is paused."""
        return self._process.poll() is None

    def kill(self) -> None:
        """As a machine that loses power: nothing is said to anyone, no handler runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)

    def pause(self) -> None:
        """As a machine that hangs: connections stay, nothing moves. Calls then wait for proceed()."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def proceed(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def leave(self, limit_s: float = 60.0) -> None:
        """As a server that is told to stop: the engine shuts down what it has, then ends."""
        self.wait_until_up()
        self._commands.close()
        try:
            status = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not end in {limit_s:.0f} s") from None
        if status != 0:
            raise self._failure(f"ended with status {status}")
        self._failed = "it was told to leave"

    def close(self) -> None:
        self.kill()
        self._selector.close()
        self._commands.close()
        self._replies.close()

    def log_tail(self, lines: int = 40) -> str:
        text = self._log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(f"  {self.name}| {line}" for line in text)

    def _start(self) -> None:
        self._up = None
        self._failed = ""
        self._unread = b""
        with self._log.open("ab") as log:
            self._process = self._begin(log)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._commands = self._process.stdin
        self._replies = self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._replies, selectors.EVENT_READ)

    def _begin(self, log: IO[bytes]) -> "subprocess.Popen[bytes] | ForkedEngine":
        return subprocess.Popen(
            [sys.executable, str(self.child), str(os.getpid()), json.dumps(self.config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=self._env,
            start_new_session=True,
        )

    def _receive(self, limit_s: float) -> Any:
        end = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            if not self._selector.select(max(0.0, end - time.monotonic())):
                raise self._failure(f"gave no answer in {limit_s:.0f} s")
            chunk = os.read(self._replies.fileno(), 1 << 16)
            if not chunk:
                raise self._failure(f"ended with status {self._process.wait(60)}")
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        return json.loads(line)

    def _failure(self, what: str) -> EngineError:
        self._failed = what
        return EngineError(f"engine {self.name} {what}; the end of its log:\n{self.log_tail()}")

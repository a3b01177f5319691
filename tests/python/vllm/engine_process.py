"""A vLLM engine in a process of its own, driven from a test.

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
from pathlib import Path
from typing import Any

_CHILD = Path(__file__).with_name("engine_child.py")
_START_LIMIT_S = 120.0


class EngineError(Exception):
    """An engine ended or did not answer in time."""


class EngineProcess:
    """One engine. Not safe for use by two threads."""

    def __init__(self, name: str, config: dict[str, Any], env: dict[str, str], logs: Path) -> None:
        """Starts the process and returns at once: engines that start together share the cores."""
        self.name = name
        self._log = logs / f"{name}.log"
        self._unread = b""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_CHILD), str(os.getpid()), json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._up: dict[str, Any] | None = None
        self._failed = ""

    def wait_until_up(self) -> dict[str, Any]:
        """What the engine says of its start: seconds, and the file of nixl._api."""
        if self._up is None:
            self._up = self._receive(_START_LIMIT_S)
        return self._up

    def call(self, command: str, limit_s: float = 60.0, **arguments: Any) -> Any:
        """After one call that failed the others do at once: the engine is where nobody knows."""
        if self._failed:
            raise EngineError(f"engine {self.name} failed before: {self._failed}")
        self.wait_until_up()
        try:
            self._process.stdin.write(json.dumps({"do": command, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failure(f"cannot be told to {command}: {error}") from None
        return self._receive(limit_s)

    def kill(self) -> None:
        """As a machine that loses power: nothing is said to anyone, no handler runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)

    def close(self) -> None:
        self.kill()
        self._selector.close()
        self._process.stdin.close()
        self._process.stdout.close()

    def log_tail(self, lines: int = 40) -> str:
        text = self._log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(f"  {self.name}| {line}" for line in text)

    def _receive(self, limit_s: float) -> Any:
        end = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            if not self._selector.select(max(0.0, end - time.monotonic())):
                raise self._failure(f"gave no answer in {limit_s:.0f} s")
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            if not chunk:
                raise self._failure(f"ended with status {self._process.wait(10)}")
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        return json.loads(line)

    def _failure(self, what: str) -> EngineError:
        self._failed = what
        return EngineError(f"engine {self.name} {what}; the end of its log:\n{self.log_tail()}")

"""Two agents that know each other, and processes of their own for tests that need one."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import kvxfer

_names = itertools.count()
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def name(word: str) -> str:
    """Unique in this process: agents that exchange metadata must differ."""
    return f"{word}-{os.getpid()}-{next(_names)}"


@contextlib.contextmanager
def pair(**options: object) -> Iterator[tuple[kvxfer.Agent, kvxfer.Agent]]:
    with (
        kvxfer.Agent(name("left"), **options) as left,
        kvxfer.Agent(name("right"), **options) as right,
    ):
        yield left, right


def know(left: kvxfer.Agent, right: kvxfer.Agent) -> None:
    """To be called again when either has registered memory."""
    left.add_peer(right.metadata())
    right.add_peer(left.metadata())


def environment(without_driver: bool = False) -> dict[str, str]:
    """Of a process of its own, which finds what tests import; ``without_driver``: and no (stand-in)
    CUDA driver."""
    changed = dict(os.environ)
    changed["PYTHONPATH"] = os.pathsep.join([_HERE, *filter(None, [changed.get("PYTHONPATH")])])
    if without_driver:
        changed.pop("LD_LIBRARY_PATH", None)
    return changed


def run(
    code: str, *arguments: str, timeout: float = 60, without_driver: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs a program of Python in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=environment(without_driver),
    )


def run_well(code: str, *arguments: str, timeout: float = 60, without_driver: bool = False) -> str:
    """The same; what it printed. It must end well and say nothing of a crash."""
    ran = run(code, *arguments, timeout=timeout, without_driver=without_driver)
    assert ran.returncode == 0, f"exit status {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.stdout

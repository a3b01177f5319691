"""Ranks of both sides with a bootstrap server, each in a process, as a test drives them."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import socket
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import sglang_rank
from free_ports import free_port
from sglang_rank import Spec

FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS = range(5)
_LIMIT_S = 20.0


def context(folder: Path) -> Any:
    """Of the process that ranks are forked from. ``folder``: for what pip would write of kvxfer's entry
    points, which the tested package has only if it was installed anew."""
    users = os.environ["KVXFER_TEST_USERS_PATH"]
    here = Path(__file__).parent
    project = tomllib.loads((here.parents[2] / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["sglang.srt.plugins"]
    info = folder / "kvxfer_entry_points-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvxfer-entry-points\nVersion: 1\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[sglang.srt.plugins]", *lines]))
    paths = [str(here), str(here.parent), *[each for each in sys.path if each], users, str(folder)]
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["sglang_preload"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(dict.fromkeys(paths)))
        # torch would initialise the stand-in CUDA driver, which then does not work in forked processes.
        libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        drivers = [each for each in libraries if (Path(each) / "libcuda.so.1").exists()]
        patch.setenv("KVXFER_TEST_DRIVER", next((f"{each}/libcuda.so.1" for each in drivers), ""))
        others = [each for each in libraries if each not in drivers]
        patch.setenv("LD_LIBRARY_PATH", os.pathsep.join(others))
        multiprocessing.forkserver.ensure_running()
    return found


class Process:
    """Calls of methods it does not know are those of the rank."""

    def __init__(self, start: Any, kind: type, argument: Any, log: Path) -> None:
        self._end, theirs = multiprocessing.Pipe()
        self.log = log
        self.process = start.Process(
            target=sglang_rank.serve, args=(theirs, kind, argument, str(log)), daemon=True
        )
        self.process.start()
        theirs.close()

    def wait_started(self) -> None:
        self._answer("start", 60.0)

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self._end.send((name, arguments))
            return self._answer(name, _LIMIT_S)

        return call

    def _answer(self, name: str, limit_s: float) -> Any:
        if not self._end.poll(limit_s):
            raise AssertionError(f"{name}: no answer in {limit_s} s{self.tail()}")
        try:
            well, value = self._end.recv()
        except EOFError:
            raise AssertionError(f"{name}: the process has died{self.tail()}") from None
        if not well:
            raise RuntimeError(value)
        return value

    def tail(self, lines: int = 25) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n" + "\n".join(text.splitlines()[-lines:])

    def kill(self) -> None:
        self.process.kill()
        self.process.join(10)

    def stop(self) -> None:
        """All of its threads, by the time that this returns."""
        os.kill(self.process.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        end = time.monotonic() + _LIMIT_S
        while any(") T " not in (each / "stat").read_text() for each in tasks.iterdir()):
            assert time.monotonic() < end, "it does not stop"
            time.sleep(0.001)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


def until(rank: Process, room: int, *wanted: int, limit_s: float = _LIMIT_S) -> int:
    """Polls as SGLang's scheduler does; the state that it comes to."""
    end = time.monotonic() + limit_s
    while (state := rank.poll(room)) not in wanted:
        assert state not in (FAILED, SUCCESS), f"state {state}: {rank.failure(room)}{rank.tail()}"
        assert time.monotonic() < end, f"still in state {state}{rank.tail()}"
        time.sleep(0.002)
    return state


class Cluster:
    def __init__(self, start: Any, logs: Path) -> None:
        self._boot: Process | None = None
        self._start = start
        self._logs = logs
        self.processes: list[Process] = []
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"

    def plugin(self) -> Process:
        process = self._begin(sglang_rank.Plugin, None)
        process.wait_started()
        return process

    def _begin_bootstrap(self) -> None:
        if self._boot is None:
            self._boot = self._begin(sglang_rank.Bootstrap, self.port)
            self._boot.wait_started()
            self._await_port()

    def _begin(self, kind: type, argument: Any) -> Process:
        log = self._logs / f"{len(self.processes)}.log"
        process = Process(self._start, kind, argument, log)
        self.processes.append(process)
        return process

    def rank(self, role: str, **options: Any) -> Process:
        process = self.begin(role, **options)
        process.wait_started()
        return process

    def begin(self, role: str, **options: Any) -> Process:
        self._begin_bootstrap()
        return self._begin(sglang_rank.Rank, self.spec(role, **options))

    def ranks(self, role: str, size: int, **options: Any) -> list[Process]:
        begun = [self.begin(role, tp_rank=each, tp_size=size, **options) for each in range(size)]
        for each in begun:
            each.wait_started()
        return begun

    def spec(self, role: str, **options: Any) -> Spec:
        if role == "decode":
            options = {"pages": 80, "seed": 2} | options
        return Spec(role, self.address, **options)

    def _await_port(self) -> None:
        end = time.monotonic() + _LIMIT_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < end, "no bootstrap server"
            time.sleep(0.01)

    def close(self) -> None:
        for each in self.processes:
            each.process.kill()
        for each in self.processes:
            each.process.join(10)

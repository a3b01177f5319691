"""Two processes that hold one end each of a transfer, started by a test.

Each ends with its test, whatever happens to the test's process. They leave by os._exit: the threads
that these programs start do not end, and the real NIXL 1.5.1 crashes in a destructor at exit.
"""

import ctypes
import importlib.util
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port  # noqa: F401

Role = Callable[..., Any]
_PR_SET_PDEATHSIG = 1


def need_nixl() -> None:
    if "KVXFER_NIXL_PATH" not in os.environ and importlib.util.find_spec("nixl") is None:
        pytest.skip("no nixl here: tests/python/environment/python-env has it")


def need_user(package: str) -> None:
    """Skips unless the package is where python-env puts programs that use NIXL."""
    need_nixl()
    folder = os.environ.get("KVXFER_TEST_USERS_PATH")
    if folder is None or not (Path(folder) / package).is_dir():
        pytest.skip(f"no {package} here: tests/python/environment/python-env has it")


def run_pair(logs: Path, left: Role, right: Role, *arguments: Any, limit_s: float = 90.0) -> list:
    """What left(connection to the other, *arguments) and right(the same) return.

    Both are functions of a module: the processes start from nothing and import it.
    """
    spawn = multiprocessing.get_context("spawn")
    ends = multiprocessing.Pipe()
    processes, reports = [], []
    for role, end in zip((left, right), ends, strict=True):
        report, child = multiprocessing.Pipe(duplex=False)
        process = spawn.Process(
            target=_child, args=(os.getpid(), logs, child, role, end, arguments), daemon=True
        )
        process.start()
        child.close()
        end.close()
        processes.append(process)
        reports.append(report)
    try:
        return _results(logs, (left, right), reports, time.monotonic() + limit_s)
    finally:
        for process in processes:
            process.kill()
            process.join(10)


def _results(logs: Path, roles: tuple[Role, Role], reports: list[Connection], end: float) -> list:
    found: dict[Connection, Any] = {}
    while len(found) < len(reports):
        pending = [report for report in reports if report not in found]
        ready = wait(pending, max(0.0, end - time.monotonic()))
        if not ready:
            pytest.fail(f"no end in time{_log_tails(logs, roles)}")
        for report in ready:
            try:
                well, value = report.recv()
            except EOFError:
                well, value = False, "the process died"
            if not well:
                name = roles[reports.index(report)].__name__
                pytest.fail(f"{name}: {value}{_log_tails(logs, roles)}")
            found[report] = value
    return [found[report] for report in reports]


def _log_tails(logs: Path, roles: tuple[Role, Role], lines: int = 30) -> str:
    tails = ""
    for role in roles:
        log = logs / f"{role.__name__}.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        tails += f"\nthe end of what {role.__name__} printed:\n"
        tails += "\n".join(f"  {line}" for line in text.splitlines()[-lines:])
    return tails


def _child(
    parent: int, logs: Path, report: Connection, role: Role, peer: Connection, arguments: tuple
) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    log = os.open(logs / f"{role.__name__}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.setdefault("UCX_TLS", "tcp,self,sm")
    os.environ["TMPDIR"] = os.environ["SGLANG_CACHE_DIR"] = str(logs)  # leaves files there only
    try:
        choose_nixl()
        report.send((True, role(peer, *arguments)))
    except BaseException:
        report.send((False, traceback.format_exc()))
    finally:
        os._exit(0)


def choose_nixl() -> None:
    """Puts the drop-in that KVXFER_NIXL_PATH names in front of an installed nixl, and the programs
    of KVXFER_TEST_USERS_PATH behind all else."""
    drop_in = os.environ.get("KVXFER_NIXL_PATH")
    if drop_in:
        sys.path.insert(0, drop_in)
    if "KVXFER_TEST_USERS_PATH" in os.environ:
        sys.path.append(os.environ["KVXFER_TEST_USERS_PATH"])
    import nixl._api

    if drop_in:
        assert Path(nixl.__file__).resolve().is_relative_to(Path(drop_in).resolve())

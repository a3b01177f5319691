"""Records of NIXL and of the drop-in, made once for each module of cases."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@functools.cache
def drop_in_path() -> str:
    given = os.environ.get("KVXFER_NIXL_PATH")
    if given:
        return given
    command = [sys.executable, "-m", "kvxfer.compat.nixl", "--path"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environment(implementation: str) -> dict[str, str]:
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [folder for folder in folders if folder and folder != drop_in_path()]
    if implementation == "drop_in":
        folders.insert(0, drop_in_path())
    folders.append(str(Path(__file__).parents[1]))  # what other tests use too
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("NIXL_", "KVXFER_NIXL_"))},
        "PYTHONPATH": os.pathsep.join(folders),
        "PYTHONUNBUFFERED": "1",
        "UCX_TLS": "tcp,self,sm",
        "UCX_NET_DEVICES": "lo",
        "UCX_LOG_LEVEL": "fatal",
        "NIXL_LOG_LEVEL": "FATAL",
    }


@functools.cache
def has_nixl() -> bool:
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('nixl') is None)"
    return subprocess.run([sys.executable, "-c", look], env=environment("real")).returncode == 0


MODULES = sorted(file.stem for file in HERE.glob("cases_*.py"))


class Record:
    """What one implementation did in one module of cases, in a process beside the test."""

    def __init__(self, module: str, implementation: str) -> None:
        self.name = implementation
        self._module = module
        self._cases: dict[str, dict] = {}
        self._process = self._start()
        self._text = ""

    def _start(self) -> subprocess.Popen:
        self._out = tempfile.TemporaryFile("w+")
        return subprocess.Popen(
            [sys.executable, str(HERE / "nixl_record.py"), self.name, self._module],
            env=environment(self.name),
            cwd=HERE,
            stdout=self._out,
            stderr=subprocess.STDOUT,
        )

    def _finish(self) -> None:
        if self._text:
            return
        # NIXL crashes now and then where agents are destroyed, which is not what is compared.
        for _ in range(3 if self.name == "real" else 1):
            self._wait()
            if self._process.returncode == 0:
                return
            if self.name == "real":
                self._process = self._start()
        self._wait()

    def _wait(self) -> None:
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.seek(0)
        self._text = self._out.read() or "nothing was printed"
        for line in self._text.splitlines():
            if line.startswith('{"case"'):
                record = json.loads(line)
                self._cases[record["case"]] = record

    @property
    def exit_code(self) -> int:
        self._finish()
        return self._process.returncode

    @property
    def end_of_text(self) -> str:
        self._finish()
        return self._text[-3000:]

    def lines(self, case: str) -> list[str]:
        self._finish()
        if case not in self._cases:
            pytest.fail(
                f"{self.name} ended with {self.exit_code} before {case}:\n{self.end_of_text}"
            )
        record = self._cases[case]
        if record["failure"]:
            pytest.fail(f"{self.name}, {case}:\n{record['failure']}\n{record['lines']}")
        return record["lines"]


@functools.cache
def _begin(module: str) -> tuple[Record | None, Record]:
    return Record(module, "real") if has_nixl() else None, Record(module, "drop_in")


def records(module: str) -> tuple[Record | None, Record]:
    """Of NIXL, where it is installed, and of the drop-in. The next module is begun meanwhile."""
    made = _begin(module)
    for following in MODULES[MODULES.index(module) + 1 :][:1]:
        _begin(following)
    return made

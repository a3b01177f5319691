"""Where NIXL, its Python and the drop-in are."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

_SIDE = Path(__file__).resolve().parent / "side.py"


class SetupError(Exception):
    """Nothing can be measured; the text says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Places:
    python: str
    drop_in: str  # the folder in which `nixl` is the drop-in
    folders: tuple[str, ...]  # PYTHONPATH besides: where kvxfer is

    def command(self) -> list[str]:
        return [self.python, str(_SIDE)]

    def environment(self, extra: dict[str, str], drop_in: bool) -> dict[str, str]:
        folders = [self.drop_in, *self.folders] if drop_in else list(self.folders)
        return {
            **os.environ,
            "NIXL_LOG_LEVEL": "FATAL",
            "UCX_LOG_LEVEL": "fatal",
            **extra,
            "PYTHONPATH": os.pathsep.join(folders),
            # What counts here is one thread's work.
            "OMP_NUM_THREADS": "1",
        }


def _output(command: list[str], **environment: str) -> str:
    """Empty where it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _find_python(root: Path, with_nixl: bool) -> str:
    look = "import importlib.metadata as m, sys, numpy;"
    if with_nixl:
        look += (
            "{d.metadata['Name'].lower() for d in m.distributions()}"
            " & {'nixl', 'nixl-cu12', 'nixl-cu13'} or sys.exit(1);"
        )
    look += "print(sys.executable)"
    environment = str(root / "tests" / "python" / "environment" / "python-env")
    given = os.environ.get("KVXFER_NIXL_PYTHON")
    tried = [[given]] if given else [[sys.executable], [environment, "run", "3.11", "--", "python"]]
    for command in tried:
        if found := _output([*command, "-c", look]):
            return found
    raise SetupError(
        f"no Python with {'NIXL and ' if with_nixl else ''}numpy: set KVXFER_NIXL_PYTHON, or run "
        "`tests/python/environment/python-env setup 3.11`"
    )


def find_places(root: Path, with_nixl: bool) -> Places:
    """SetupError. ``with_nixl``: NIXL itself is measured too."""
    python = _find_python(root, with_nixl)
    given = os.environ.get("PYTHONPATH", "")
    path = os.environ.get("KVXFER_NIXL_PATH", "")
    built = os.pathsep.join(filter(None, (str(root / "build" / "python-dev"), given)))
    for folders in (given, built):
        command = [python, "-m", "kvxfer.compat.nixl", "--path"]
        if found := _output(command, PYTHONPATH=folders):
            rest = [f for f in folders.split(os.pathsep) if f and f not in (found, path)]
            return Places(python, path or found, tuple(rest))
    raise SetupError(
        "kvxfer cannot be imported: put it on PYTHONPATH, or build it in build/python-dev"
    )

"""``python -m kvxfer`` finds the program of the package and becomes it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvxfer import _cli

SOURCES = Path(_cli.__file__).parent
# A stand-in for the compiled program: it says who it is, what it was given and what it ignores.
PROGRAM = """#!/bin/bash
case $1 in
  --help) printf 'Usage: kvxfer SUBCOMMAND\\n\\nSubcommands:\\n  bench  Measures transfers\\n\\n' ;;
  --version) echo 1.2.3 ;;
  exit) exit "$2" ;;
  kill) kill -s "$2" $$ ;;
  ignored) grep SigIgn /proc/$$/status ;;
  *) echo "pid $$"; printf '<%s>\\n' "$@" ;;
esac
"""


class Package:
    """A copy of the package's own part of the command line, without the rest of the package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {k: v for k, v in os.environ.items() if k != "KVXFER_CLI"}
        self.environment["PYTHONPATH"] = str(folder)
        (folder / "kvxfer").mkdir()
        for name in ("__main__.py", "_cli.py"):
            shutil.copy(SOURCES / name, folder / "kvxfer" / name)

    @property
    def program(self) -> Path:
        return self.folder / "kvxfer" / "_bin" / "kvxfer"

    def put(self, path: Path, text: str = PROGRAM, mode: int = 0o755) -> Path:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "kvxfer", *arguments], env=self.environment, text=True,
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err


@pytest.fixture(name="package")
def _package(tmp_path: Path) -> Package:
    package = Package(tmp_path)
    package.put(package.program)
    return package


def test_the_process_becomes_the_program(package: Package) -> None:
    process = package.start("bench", "--json", "a b", "", "päth")
    out, err = process.communicate(timeout=60)
    given = ["<bench>", "<--json>", "<a b>", "<>", "<päth>"]
    assert out.splitlines() == [f"pid {process.pid}", *given]
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize("status", [0, 1, 3, 5, 77])
def test_its_exit_status_is_passed_on(package: Package, status: int) -> None:
    assert package.run("exit", str(status)) == (status, "", "")


@pytest.mark.parametrize("name", ["TERM", "KILL", "PIPE"])
def test_a_signal_ends_it_as_it_ends_the_program(package: Package, name: str) -> None:
    assert package.run("kill", name)[0] == -signal.Signals[f"SIG{name}"]


def test_it_ignores_no_signal_because_python_does(package: Package) -> None:
    _, out, _ = package.run("ignored")
    ignored = int(out.split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored >> (number - 1) & 1, signal.Signals(number).name


def test_the_version_is_the_programs(package: Package) -> None:
    assert package.run("--version") == (0, "1.2.3\n", "")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_has_the_programs_commands_and_the_packages(package: Package, option: str) -> None:
    status, out, err = package.run(option)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "Usage: kvxfer SUBCOMMAND"
    assert lines[lines.index("  bench  Measures transfers") + 1].startswith("  plot  ")
    assert "python -m kvxfer.compat.nixl" in out


def test_without_a_command_there_is_help_and_the_status_of_a_wrong_one(package: Package) -> None:
    status, out, err = package.run()
    assert (status, out) == (2, "")
    assert err == package.run("--help")[1]


def test_a_build_is_found_by_the_environment(package: Package, tmp_path: Path) -> None:
    package.program.unlink()
    package.environment["KVXFER_CLI"] = str(package.put(tmp_path / "built" / "kvxfer"))
    assert package.run("--version") == (0, "1.2.3\n", "")


def test_the_packages_own_program_goes_first(package: Package, tmp_path: Path) -> None:
    other = package.put(tmp_path / "built" / "kvxfer", "#!/bin/bash\necho other\n")
    package.environment["KVXFER_CLI"] = str(other)
    assert package.run("--version") == (0, "1.2.3\n", "")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("bench", "--json")])
def test_a_missing_program_is_named(package: Package, arguments: tuple[str, ...]) -> None:
    package.program.unlink()
    status, out, err = package.run(*arguments)
    assert (status, out) == (5, "")
    assert err.startswith("kvxfer: ") and err.count("\n") == 1
    assert str(package.program) in err and "KVXFER_CLI" in err


def test_a_wrong_name_in_the_environment_is_named(package: Package) -> None:
    package.program.unlink()
    package.environment["KVXFER_CLI"] = "/no/such/kvxfer"
    status, _, err = package.run("bench")
    assert (status, err.count("\n")) == (5, 1)
    assert "/no/such/kvxfer is missing" in err


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [(PROGRAM, 0o644, "is not executable"), ("\x7fELF of another kind", 0o755, "cannot be run")],
)
def test_a_program_that_cannot_run_is_named(
    package: Package, text: str, mode: int, why: str
) -> None:
    package.put(package.program, text, mode)
    status, out, err = package.run("doctor")
    assert (status, out) == (5, "")
    assert f"{package.program} {why}" in err and err.count("\n") == 1


def test_nothing_heavy_is_imported_on_the_way_to_the_program() -> None:
    # The installed package, not the copy: its __init__ is on that way too.
    code = (
        "import sys, kvxfer._cli\n"
        "print([m for m in ('numpy', 'matplotlib', 'asyncio', 'kvxfer._kvxfer', 'kvxfer.plot')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_plot_is_the_packages_and_needs_no_program() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "KVXFER_CLI"}
    done = subprocess.run(
        [sys.executable, "-m", "kvxfer", "plot", "--help"], env=environment,
        capture_output=True, text=True, check=False, timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: kvxfer plot ")

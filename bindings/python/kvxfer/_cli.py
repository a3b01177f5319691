"""The ``kvxfer`` program as the package has it: ``kvxfer …`` and ``python -m kvxfer …``.

All but ``plot`` is the compiled program that lies in the package. It replaces this process, so that
exit status, signals and terminal are its own. Nothing heavy is imported on the way there.
"""

from __future__ import annotations

import os
import signal
import sys

# What the program itself answers with where something does not work on a host: docs/cli.md.
_NOT_HERE = 5
_USAGE = 2

_OWN_HELP = """\
  plot                        Draws what bench --json and benchmarks/compare measured (needs
                              matplotlib: pip install 'kvxfer[plot]')

Programs written for NIXL's Python interface: python -m kvxfer.compat.nixl -- COMMAND
"""


class MissingProgram(Exception):
    """The compiled program is not where it should be, or cannot be run."""


def find_program() -> str:
    """The path of the compiled program: that of the package, else what ``KVXFER_CLI`` names.

    Raises MissingProgram, with the places that were looked at.
    """
    packaged = os.path.join(os.path.dirname(os.path.realpath(__file__)), "_bin", "kvxfer")
    if os.path.isfile(packaged):
        return _executable(packaged, "reinstall the package")
    named = os.environ.get("KVXFER_CLI", "")
    if named:
        return _executable(named, "KVXFER_CLI must name the compiled kvxfer program")
    raise MissingProgram(
        f"the compiled program is missing: there is no {packaged}, and KVXFER_CLI is not set; "
        "install a wheel of kvxfer, or set KVXFER_CLI to the program of a build"
    )


def _executable(path: str, remedy: str) -> str:
    if not os.path.isfile(path):
        raise MissingProgram(f"{path} is missing; {remedy}")
    if not os.access(path, os.X_OK):
        raise MissingProgram(f"{path} is not executable; {remedy}")
    return path


def _become(program: str, arguments: list[str]) -> None:
    # Python ignores these two, and who is ignored stays so in the program that follows.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(program, ["kvxfer", *arguments])
    except OSError as error:
        raise MissingProgram(f"{program} cannot be run: {error.strerror}") from error


def _help() -> str:
    """The program's own help, and what the package adds to it."""
    import subprocess  # pylint: disable=import-outside-toplevel (other commands do without)

    done = subprocess.run(
        [find_program(), "--help"], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode != 0:
        raise MissingProgram(f"{find_program()} --help failed: {done.stderr.strip()}")
    return done.stdout.rstrip() + "\n" + _OWN_HELP


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status of ``plot`` and of the help; any other command does not return."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["plot"]:
        from kvxfer.plot import main as plot  # pylint: disable=import-outside-toplevel

        return plot(arguments[1:])
    try:
        if not arguments:
            sys.stderr.write(_help())
            return _USAGE
        if arguments[0] in ("-h", "--help"):
            sys.stdout.write(_help())
            return 0
        _become(find_program(), arguments)
    except MissingProgram as error:
        print(f"kvxfer: {error}", file=sys.stderr)
    return _NOT_HERE

"""Runs a command in which ``import nixl`` means kvxfer: see --help."""

import importlib.util
import os
import shutil
import site
import sys
from pathlib import Path

from kvxfer.compat.nixl import path

_USAGE = """\
usage: python -m kvxfer.compat.nixl -- COMMAND [ARGUMENT…]
       python -m kvxfer.compat.nixl --path

Runs COMMAND, and what it starts, with NIXL's Python interface served by kvxfer: `import nixl`,
`nixl_cu12` and `nixl_cu13` mean kvxfer there. All processes that exchange metadata have to run so.

  --path   prints the folder that does it, for PYTHONPATH

Environment: KVXFER_LISTEN=HOST:PORT where peers are on other hosts (there is no authentication
yet), KVXFER_NIXL_DEADLINE=SECONDS for each transfer (600), and KVXFER_* as for any kvxfer agent.
UCX_TLS and UCX_NET_DEVICES choose kvxfer's backends and devices, as far as there is one for them.
"""


def _folder_of_kvxfer() -> str | None:
    """The folder to import kvxfer from, where COMMAND would not find it by itself."""
    spec = importlib.util.find_spec("kvxfer")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = str(Path(spec.submodule_search_locations[0]).absolute().parent)
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    return None if folder in installed else folder


def environment() -> dict[str, str]:
    """This process's, with the drop-in first on PYTHONPATH."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [str(path()), *before, _folder_of_kvxfer()]
    once = dict.fromkeys(folder for folder in folders if folder)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(once)}


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0
    if arguments == ["--path"]:
        print(path())
        return 0
    if arguments and arguments[0] == "--":
        arguments = arguments[1:]
    if not arguments or arguments[0].startswith("-"):
        what = f"unknown option {arguments[0]}" if arguments else "no command"
        print(f"kvxfer.compat.nixl: {what}\n\n{_USAGE}", end="", file=sys.stderr)
        return 2
    command = arguments[0]
    if shutil.which(command) is None:
        print(f"kvxfer.compat.nixl: no such command: {command}", file=sys.stderr)
        return 127
    try:
        os.execvpe(command, arguments, environment())
    except OSError as error:
        print(f"kvxfer.compat.nixl: cannot run {command}: {error}", file=sys.stderr)
        return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

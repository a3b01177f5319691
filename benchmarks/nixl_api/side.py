"""One process of a contestant: does what lines of JSON on its standard input say.

Which NIXL it measures is decided by PYTHONPATH alone.
"""

import ctypes
import importlib.metadata
import json
import logging
import os
import signal
import sys

from clock import Failure, Seen

_PR_SET_PDEATHSIG = 1


def _version() -> str:
    if "kvxfer" in sys.modules:
        return f"drop-in of kvxfer {sys.modules['kvxfer'].__version__}"
    for name in ("nixl", "nixl-cu13", "nixl-cu12"):
        try:
            return f"nixl {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            pass
    return "nixl"


def _make(options: dict) -> object:
    logging.disable(logging.WARNING)
    import nixl._api as api  # noqa: PLC0415 (quiet first)

    seen = Seen(options["seen_fd"])
    if options["role"] == "prefill":
        from prefill import Prefill as Side  # noqa: PLC0415
    else:
        from decode import Decode as Side  # noqa: PLC0415
    return Side(api, options, seen)


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Libraries that print must not garble the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        side = _make(json.loads(sys.argv[1]))
        say({"version": _version()})
        for line in sys.stdin:
            order = json.loads(line)
            say(getattr(side, order.pop("do"))(**order) or {})
    except Failure as error:
        say({"error": str(error)})
    except Exception as error:  # whatever a library raises
        logging.disable(logging.NOTSET)
        logging.getLogger().exception("failed")
        say({"error": f"{type(error).__name__}: {error}"})
    os._exit(0)  # NIXL crashes in its own end


main()

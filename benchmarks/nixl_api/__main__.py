"""Compares kvxfer's drop-in for NIXL's Python interface with NIXL, on the same work.

    python3 benchmarks/nixl_api [--turns N] [--out FILE.json]

A prefill and a decode process each, as inference servers have them: decode reads blocks of a paged
KV cache by make_prepped_xfer and polls for the end, prefill polls for the notification. Every turn
measures each contestant in new processes. Prints Markdown; README.md says how to read it.

Paths: KVXFER_NIXL_PYTHON, a Python with NIXL and numpy (else this one, else that of
tests/python/environment); kvxfer from PYTHONPATH or build/python-dev; KVXFER_NIXL_PATH, the drop-in
(else what `python -m kvxfer.compat.nixl --path` prints).
Exit status: 0 done, 1 something failed and no result was left, 2 bad arguments.
"""

import argparse
import datetime
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
sys.path.append(str(HERE.parent / "compare"))  # machine

# pylint: disable=wrong-import-position
import contestants  # noqa: E402
import figures  # noqa: E402
import machine  # noqa: E402
import report  # noqa: E402
from models import MODELS  # noqa: E402
from pair import PairError  # noqa: E402
from places import SetupError, find_places  # noqa: E402
from session import VISITS, Plan, Session  # noqa: E402


def say(line: str) -> None:
    print(f"nixl_api: {line}", file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def _device(text: str) -> int | None:
    if text == "dram":
        return None
    if not text.startswith("cuda:") or not text[5:].isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is neither dram nor cuda:N")
    return int(text[5:])


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    names = [one.name for one in contestants.ALL]
    parser = argparse.ArgumentParser(
        prog="benchmarks/nixl_api", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--turns", type=_positive, default=7, help="of each contestant; default 7")
    parser.add_argument(
        "--requests", type=_positive, metavar="N", help="of each row and turn; default by model"
    )
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--visits", nargs="+", choices=VISITS, default=list(VISITS))
    parser.add_argument(
        "--memory", type=_device, default=None, metavar="dram|cuda:N",
        help="where both sides have their caches; default dram",
    )  # fmt: skip
    parser.add_argument(
        "--contestants", nargs="+", choices=names, default=names, metavar="NAME",
        help="only these of: " + ", ".join(names),
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of block ids and bytes; default 1")
    parser.add_argument("--out", metavar="FILE.json", help="everything, each turn's medians too")
    return parser.parse_args(arguments)


def _measure(options: argparse.Namespace) -> dict:
    chosen = [one for one in contestants.ALL if one.name in options.contestants]
    places = find_places(ROOT, any(one.kind == contestants.NIXL for one in chosen))
    models = [MODELS[name] for name in options.models]
    plan = Plan(
        options.turns, options.requests, tuple(models), tuple(options.visits), options.seed,
        options.memory,
    )  # fmt: skip
    before = machine.load_average()
    session = Session(plan, places, say)
    samples = session.run(chosen)
    return {
        "schema": report.SCHEMA,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine.describe(),
        "versions": {"kvxfer": machine.versions(ROOT)["kvxfer"], **session.versions},
        "turns": options.turns,
        "seed": options.seed,
        "memory": "dram" if options.memory is None else f"cuda:{options.memory}",
        "load": {"before": before, "after": machine.load_average()},
        "contestants": [one.describe() for one in chosen],
        "models": [model.describe() for model in models],
        "rows": figures.rows(samples, chosen),
    }


def main(arguments: list[str] | None = None) -> int:
    options = _arguments(arguments)
    try:
        result = _measure(options)
        if options.out:
            out = Path(options.out)
            fresh = out.with_name(out.name + ".new")
            fresh.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            os.replace(fresh, out)
    except (PairError, SetupError, OSError) as error:
        say(f"{error}; no result was written")
        return 1
    except KeyboardInterrupt:
        say("interrupted; no result was written")
        return 1
    print(report.markdown(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compares kvxfer with its peers and with raw loops, in turn, on the same work.

    python3 benchmarks/compare [--quick]

Installs the Debian packages that it misses (scripts/setup), builds what it runs (the preset release),
installs the peers into build/compare/venv, and leaves a JSON file, Markdown tables and plots in
benchmarks/results. docs/performance.md says how to read them. A group of which a contestant fails is
named in them with the reason, and the others are measured. Exit status: 0 done, 1 something failed
and no result was left, 2 bad arguments, 3 a result was left, without the groups that failed.
"""

import argparse
import datetime
import glob
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)

# pylint: disable=wrong-import-position
import contestants  # noqa: E402
import environment  # noqa: E402
import figures  # noqa: E402
import machine  # noqa: E402
import report  # noqa: E402
from pair import ContestantError  # noqa: E402
from session import Plan, Session  # noqa: E402

MIB = 1 << 20


def say(line):
    print(f"compare: {line}", file=sys.stderr, flush=True)


def _positive(text):
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def _block_size(text):
    value = _positive(text)
    if value % 64:
        raise argparse.ArgumentTypeError(f"{text} is no multiple of 64")
    return value


def _arguments(arguments):
    names = [group.name for group in contestants.GROUPS]
    parser = argparse.ArgumentParser(prog="benchmarks/compare",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true",
                        help="at most 3 minutes: fewer sizes, fewer and shorter turns")
    parser.add_argument("--groups", nargs="+", metavar="GROUP", choices=names, default=names,
                        help="only these of: " + " ".join(names))
    parser.add_argument("--block-sizes", type=_block_size, nargs="+", metavar="BYTES")
    parser.add_argument("--total", type=_positive, default=256 * MIB, metavar="BYTES",
                        help="of one round; default 256 MiB")
    parser.add_argument("--turns", type=_positive, help="of each contestant at each case")
    parser.add_argument("--no-peers", action="store_true", help="only kvxfer and the raw loops")
    parser.add_argument("--bin", metavar="DIR", help="drivers that are built already")
    parser.add_argument("--before", metavar="DIR",
                        help="drivers of another build of kvxfer (build/release/bin), measured in "
                             "turn with these and the raw loops alone; take 30 turns or more")
    parser.add_argument("--out", metavar="DIR",
                        help="default benchmarks/results, with --quick benchmarks/results/quick")
    options = parser.parse_args(arguments)
    quick = options.quick
    options.block_sizes = options.block_sizes or (
        [4096, 65536, MIB] if quick else [4096, 16384, 65536, MIB])
    options.turns = options.turns or (2 if quick else 5)
    results = os.path.join(ROOT, "benchmarks", "results")
    options.out = options.out or (os.path.join(results, "quick") if quick else results)
    if max(options.block_sizes) > options.total:
        parser.error(f"--total of {options.total} bytes holds no block of "
                     f"{max(options.block_sizes)}")
    for option, folder in (("--bin", options.bin), ("--before", options.before)):
        if folder and not os.path.exists(os.path.join(folder, "compare_kvxfer")):
            parser.error(f"{option}: there is no compare_kvxfer in {folder}; build the target "
                         "compare_drivers")
    return options


def _places(options):
    work = os.path.join(ROOT, "build", "compare")
    logs = os.path.join(work, "logs")
    os.makedirs(logs, exist_ok=True)
    os.makedirs(options.out, exist_ok=True)
    if not options.bin:
        # The peers' virtual environment is made with what --python installs.
        environment.install_packages(ROOT, [] if options.no_peers else ["--python"], say)
    programs = options.bin or environment.build_drivers(ROOT, os.path.join(logs, "build.log"))
    return environment.Places(here=HERE, programs=os.path.abspath(programs),
                              venv=os.path.join(work, "venv"), logs=logs)


def _draw(places, path, folder):
    """The plots' names; none where there is no matplotlib."""
    if not os.path.exists(places.python):
        say("no plots: matplotlib is not installed; a run with peers installs it")
        return []
    done = subprocess.run([places.python, os.path.join(HERE, "plots.py"), path, folder],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        say("no plots: " + (done.stderr.strip().splitlines() or ["plots.py failed"])[-1])
        return []
    return [os.path.basename(path) for path in done.stdout.splitlines()]


def _measure(options, places):
    groups = tuple(group for group in contestants.GROUPS if group.name in options.groups)
    if options.no_peers or options.before:
        missing, absent = {}, []
        groups = tuple(contestants.without_peers(group) for group in groups)
    else:
        missing = environment.set_up_peers(places.venv, say)
        groups, absent = environment.drop_missing(groups, places, missing)
    groups = tuple(group for group in groups
                   if any(one.kind == contestants.KVXFER for one in group.contestants))
    if options.before:
        before = os.path.abspath(options.before)
        groups = tuple(contestants.with_before(group, before) for group in groups)
    for one in absent:
        say(f"missing: {one['name']}: {one['reason']}")
    plan = Plan(block_sizes=tuple(options.block_sizes), total=options.total, turns=options.turns,
                turn_s=0.15 if options.quick else 0.4)
    load = machine.load_average()
    rows, failed = Session(plan, places, say).run(groups)
    if not rows:
        raise ContestantError(failed[-1]["reason"] if failed else
                              "no group is left: each misses kvxfer's own contestant")
    return {
        "schema": report.SCHEMA, "complete": True,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine.describe(), "versions": machine.versions(ROOT),
        "workload": {"total": options.total, "block_sizes": options.block_sizes,
                     "turns": options.turns, "quick": options.quick,
                     "load_before": load},
        "titles": {group.name: group.title for group in groups},
        "missing": absent, "failed": failed, "results": rows, "ratios": figures.ratios(rows),
    }


def _write(places, result, out):
    """Everything into a folder of its own first: what lies in `out` is of one run, and whole."""
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as fresh:
        path = os.path.join(fresh, "compare.json")
        report.write_json(path, result)
        plots = _draw(places, path, fresh)
        text = report.markdown(result, plots)
        report.write(os.path.join(fresh, "compare.md"), text)
        for old in glob.glob(os.path.join(out, "*.png")):
            os.remove(old)
        for name in os.listdir(fresh):
            os.replace(os.path.join(fresh, name), os.path.join(out, name))
    return text


def main(arguments=None):
    options = _arguments(arguments)
    try:
        places = _places(options)
        result = _measure(options, places)
        text = _write(places, result, options.out)
    except (ContestantError, environment.SetupError, OSError, ValueError, IndexError) as error:
        say(f"{error}; no result was written")
        return 1
    except KeyboardInterrupt:
        say("interrupted; no result was written")
        return 1
    print(text)
    for one in result["failed"]:
        say(f"{one['group']} is not in the result: {one['reason']}")
    return 3 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

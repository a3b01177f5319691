#!/usr/bin/env python3
"""Measures transfers of GPU memory with `kvxfer bench`, and judges them; scripts/gpu-test calls it.

    measure.py SECTION --kvxfer PROGRAM --out FOLDER [--seconds N] [--quick REASON]

goals.py has the sections and what is wanted. Every turn runs everything once; medians of the turns
are judged. FOLDER gets what the runs printed. The last line is "N passed, N failed".
Exit status: 0 all goals are met, 1 one is not, or something was not measured.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from goals import SECTIONS, Goal, Run, Turn, Judgement, judge  # noqa: E402

_TURNS = 3
_LONGEST_RUN_S = 60.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("section", choices=list(SECTIONS))
    parser.add_argument("--kvxfer", required=True, metavar="PROGRAM")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=120, help="no turn begins that would not "
                        "end within these, but the first; default 120")  # fmt: skip
    parser.add_argument("--quick", default="", metavar="REASON",
                        help="one short turn, which is not judged")  # fmt: skip
    return parser.parse_args()


def _run(one: Run, kvxfer: str, log: Path, seconds: float) -> dict | str:
    """The document that it printed, or why there is none."""
    command = [kvxfer, "bench", "--json", *one.flags]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=max(seconds, 1), env={**os.environ, **one.environment},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"`{' '.join(command)}` was stopped after {seconds:.0f} s"
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or ["it printed nothing"]
        return f"`{' '.join(command)}` ended with {done.returncode}: {words[-1]}"
    return json.loads(done.stdout)


def _turns(runs: list[Run], options: argparse.Namespace) -> list[Turn]:
    begin = time.monotonic()
    turns: list[Turn] = []
    while len(turns) < (1 if options.quick else _TURNS):
        took = time.monotonic() - begin
        if turns and took * (len(turns) + 1) / len(turns) > options.seconds:
            break
        turn: Turn = {}
        for one in runs:
            left = options.seconds - (time.monotonic() - begin)
            log = options.out / f"{options.section}-{one.name}-{len(turns)}.json"
            turn[one.name] = _run(one, options.kvxfer, log, min(left, _LONGEST_RUN_S))
        turns.append(turn)
    return turns


def _pcie() -> str:
    """Generation and width of the first GPU's link, as "5, 16"; empty where that is not known."""
    query = ["nvidia-smi", "-i", "0", "--format=csv,noheader",
             "--query-gpu=pcie.link.gen.max,pcie.link.width.max"]  # fmt: skip
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _judge(goal: Goal, way: str, turns: list[Turn], quick: bool) -> Judgement:
    if quick or not goal.pcie_5:
        return judge(goal, way, turns, not quick)
    link = _pcie()
    judgement = judge(goal, way, turns, link == "5, 16")
    if link == "5, 16":
        return judgement
    return replace(judgement, text=f"{judgement.text}: PCIe generation and lanes are {link or '?'}")


def main() -> int:
    options = _arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    runs, goals = SECTIONS[options.section](bool(options.quick))
    turns = _turns(runs, options)
    why_not = f"; not judged: {options.quick}" if options.quick else ""
    print(f"medians of {len(turns)} turns{why_not}")
    ways = {one.name: one.way for one in runs}
    words = Counter[str]()
    for goal in goals:
        judgement = _judge(goal, ways[goal.run], turns, bool(options.quick))
        words[judgement.word] += 1
        print(f"  {judgement.word:<4} {goal.name:<42} {judgement.text}", flush=True)
    # What is not judged was measured all the same.
    print(f"{words['ok'] + words['-']} passed, {words['FAIL']} failed")
    return 1 if words["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())

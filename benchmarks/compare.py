#!/usr/bin/env python3
"""Compares kvxfer with what the machine itself gives, round by round in turn.

    benchmarks/compare.py --bin build/release/bin

Runs the raw programs and `kvxfer` alternately, so that both see the same machine, and prints for
each case the median of the runs of either side and their ratio. Same scatter, payload and end of a
round on both sides. Standard library only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

MIB = 1 << 20


def run(command):
    """The JSON that a program prints; the end of everything when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with exit status {done.returncode}")
    return json.loads(done.stdout)


class Case:
    """One line of the result: `raw` and `ours` each return {label: figure}."""

    def __init__(self, name, unit, raw, ours, better):
        self.name, self.unit, self.raw, self.ours, self.better = name, unit, raw, ours, better
        self.figures = {}

    def round(self):
        for side, measure in (("raw", self.raw), ("kvxfer", self.ours)):
            for label, figure in measure().items():
                self.figures.setdefault(label, {}).setdefault(side, []).append(figure)

    def rows(self):
        for label, sides in self.figures.items():
            raw = statistics.median(sides["raw"])
            ours = statistics.median(sides["kvxfer"])
            # Above 1 is better than the raw program, whatever the unit.
            ratio = ours / raw if self.better == "higher" else raw / ours
            yield {"case": self.name, "what": label, "unit": self.unit, "raw": raw,
                   "kvxfer": ours, "ratio": ratio, "runs": sides}


def cases(options):
    tool = lambda name: os.path.join(options.bin, name)
    sizes = ",".join(str(size) for size in options.block_sizes)
    common = ["--json", "--block-sizes", sizes, "--total", str(options.total),
              "--rounds", str(options.rounds)]

    def rates(command):
        rows = run(command)["rows"]
        return {f"{row['block_bytes']} B": row["gb_per_s"] for row in rows}

    def raw(program, mode):
        return lambda: rates([tool(program), "--mode", mode] + common)

    def bench(*more):
        return lambda: rates([tool("kvxfer"), "bench"] + list(more) + common)

    def raw_ping():
        row = run([tool("tcp_limit"), "--json", "--mode", "ping-pong", "--size", "4096", "--count",
                   str(options.pings)])["rows"][0]
        return {"4096 B": row["p50_us"]}

    def ping():
        report = run([tool("kvxfer"), "ping", "--json", "--backend", "tcp", "--size", "4096",
                      "--interval", "0", "--warm-up", "100", "--count", str(options.pings)])
        return {"4096 B": report["p50_us"]}

    return [
        Case("tcp / gathered loop", "GB/s", raw("tcp_limit", "gather"),
             bench("--backend", "tcp"), "higher"),
        Case("tcp / a send a block", "GB/s", raw("tcp_limit", "per-block"),
             bench("--backend", "tcp"), "higher"),
        Case("shm mapped / streaming copy", "GB/s", raw("shm_limit", "stream"),
             bench("--backend", "shm", "--memory", "mapped"), "higher"),
        Case("shm attached / process_vm_writev", "GB/s", raw("shm_limit", "attached"),
             bench("--backend", "shm", "--memory", "attached"), "higher"),
        Case("ping / blocking ping-pong", "us p50", raw_ping, ping, "lower"),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/bin", help="where the programs are")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each side, interleaved")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each run")
    parser.add_argument("--total", type=int, default=256 * MIB, help="bytes of one round")
    parser.add_argument("--pings", type=int, default=5000, help="round trips of each run")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[4096, 65536, MIB])
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    options = parser.parse_args()

    chosen = [case for case in cases(options) if options.only in case.name]
    for repeat in range(options.repeat):
        for case in chosen:
            print(f"run {repeat + 1}/{options.repeat}: {case.name}", file=sys.stderr)
            case.round()
    rows = [row for case in chosen for row in case.rows()]
    if options.json:
        print(json.dumps({"cpus": os.cpu_count(), "rows": rows}, indent=2))
        return
    print(f"{'case':34} {'what':>10} {'unit':>7} {'raw':>9} {'kvxfer':>9} {'ratio':>6}")
    for row in rows:
        print(f"{row['case']:34} {row['what']:>10} {row['unit']:>7} {row['raw']:9.2f} "
              f"{row['kvxfer']:9.2f} {row['ratio']:6.2f}")


if __name__ == "__main__":
    main()

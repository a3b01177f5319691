#!/usr/bin/env python3
"""kvxfer over verbs beside perftest (ib_write_bw, ib_write_lat) on the same two ports, in turn.

On a cluster node with two ports that reach each other, or in the guest of the tests:

    benchmarks/verbs/perftest.py --client mlx5_0 --server mlx5_1
    tests/support/rdma-vm/rdma-vm run -- benchmarks/verbs/perftest.py --client rxe0 --server rxe1 --volume 4M

Both use one queue pair and RC. perftest writes the same block again and again; kvxfer writes blocks in
random order to random places and waits for the other side's answer, so its figure has that in it.
Prints medians over the turns, and the ratio. Exit status 1 when something fails.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PORT = 18515
LIMIT = 300  # seconds for any one command


def parse_size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1].upper()] if text[-1].upper() in units else int(text)


def gid_index(device):
    """Of the RoCE v2 address of an IPv4 network, else of any RoCE v2 address; None: InfiniBand."""
    types = f"/sys/class/infiniband/{device}/ports/1/gid_attrs/types"
    found = None
    for index in sorted((int(name) for name in os.listdir(types)), reverse=True):
        try:
            with open(f"{types}/{index}", encoding="ascii") as file:
                kind = file.read().strip()
            with open(f"/sys/class/infiniband/{device}/ports/1/gids/{index}", encoding="ascii") as file:
                gid = file.read().strip()
        except OSError:
            continue  # an empty slot
        if kind == "RoCE v2" and (found is None or gid.startswith("0000:0000:0000:0000:0000:ffff")):
            found = index
    return found


class Perftest:
    """One run of a perftest program is a server and a client."""

    def __init__(self, client, server):
        self.client, self.server = client, server

    def run(self, program, arguments):
        def command(device, peer):
            index = gid_index(device)
            gid = [] if index is None else ["-x", str(index)]
            return [program, "-d", device, *gid, "-F", "-p", str(PORT), *arguments, *peer]
        with subprocess.Popen(command(self.server, []), stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as server:
            try:
                for attempt in range(50):
                    time.sleep(0.1)
                    done = subprocess.run(command(self.client, ["127.0.0.1"]), text=True,
                                          capture_output=True, timeout=LIMIT, check=False)
                    if done.returncode == 0 or "Couldn't connect" not in done.stderr + done.stdout:
                        break
                if done.returncode != 0:
                    sys.exit(f"{program}: {done.stderr.strip() or done.stdout.strip()}")
                server.wait(timeout=LIMIT)
            finally:
                server.kill()
        rows = [line.split() for line in done.stdout.splitlines() if re.match(r"\s*\d+\s+\d+\s", line)]
        if not rows:
            sys.exit(f"{program}: no figures in its output:\n{done.stdout}")
        return rows[-1]

    def bandwidth(self, size, volume):
        """Bytes a second."""
        row = self.run("ib_write_bw", ["-s", str(size), "-n", str(max(5, volume // size)), "-t", "128"])
        return float(row[3]) * (1 << 20)

    def latency(self, size, rounds):
        """Half a round trip: microseconds."""
        row = self.run("ib_write_lat", ["-s", str(size), "-n", str(rounds)])
        return float(row[4])


class Kvxfer:
    """`kvxfer serve` on one port, `kvxfer bench` on the other."""

    def __init__(self, program, client, server, spin_us):
        self.program = program
        environment = dict(os.environ)
        if spin_us is not None:
            environment["KVXFER_SPIN_US"] = str(spin_us)
        self.environment = {**environment, "KVXFER_VERBS_DEVICES": client}
        # Of every initiator that leaves it says so.
        self.errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8")
        self.served = subprocess.Popen(
            [program, "serve", "--listen", "127.0.0.1:0", "--backend", "verbs", "--json"],
            env={**environment, "KVXFER_VERBS_DEVICES": server}, stdout=subprocess.PIPE,
            stderr=self.errors, text=True)
        line = self.served.stdout.readline()
        if not line:
            self.errors.seek(0)
            sys.exit(f"kvxfer serve ended: {self.errors.read().strip()}")
        self.address = json.loads(line)["serving"]

    def close(self):
        self.served.terminate()
        self.served.wait(timeout=30)

    def bench(self, arguments):
        done = subprocess.run([self.program, "bench", self.address, "--backend", "verbs", "--json", *arguments],
                              env=self.environment, stdout=subprocess.PIPE, timeout=LIMIT, check=False)
        if done.returncode != 0:
            sys.exit(f"kvxfer bench ended with {done.returncode}")
        return json.loads(done.stdout)["results"][0]

    def bandwidth(self, size, volume):
        result = self.bench(["-s", str(size), "--total", str(volume), "-n", "3", "--warmup", "1"])
        return result["gb_per_s"] * 1e9

    def latency(self, size, rounds):
        result = self.bench(["--latency", "-s", str(size), "-n", str(rounds), "--warmup", "20"])
        return result["p50_us"] / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--client", required=True, help="RDMA device of the initiator")
    parser.add_argument("--server", required=True, help="RDMA device of the target")
    parser.add_argument("--sizes", default="4K,64K,1M")
    parser.add_argument("--volume", default="256M", help="bytes a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=500, help="of latency")
    parser.add_argument("--spin-us", type=int, help="both sides of kvxfer spin so long before they sleep")
    parser.add_argument("--kvxfer", default=os.path.join(ROOT, "build/release/bin/kvxfer"))
    options = parser.parse_args()
    sizes, volume = options.sizes.split(","), parse_size(options.volume)

    perftest = Perftest(options.client, options.server)
    kvxfer = Kvxfer(options.kvxfer, options.client, options.server, options.spin_us)
    try:
        print("| block | ib_write_bw MB/s | kvxfer MB/s | ratio |\n|---|---:|---:|---:|")
        for size in sizes:
            pairs = [(perftest.bandwidth(parse_size(size), volume), kvxfer.bandwidth(parse_size(size), volume))
                     for _ in range(options.turns)]
            theirs, ours = (statistics.median(side) / 1e6 for side in zip(*pairs))
            ratio = statistics.median(k / p for p, k in pairs)
            print(f"| {size} | {theirs:.1f} | {ours:.1f} | {ratio:.2f} |", flush=True)
        pairs = [(perftest.latency(4096, options.rounds), kvxfer.latency(4096, options.rounds))
                 for _ in range(options.turns)]
        theirs, ours = (statistics.median(side) for side in zip(*pairs))
        print(f"\n4 KiB, one way, p50: ib_write_lat {theirs:.1f} us (polls memory), "
              f"kvxfer write + notification {ours:.1f} us (half of the round trip with its answer)")
    finally:
        kvxfer.close()


if __name__ == "__main__":
    main()

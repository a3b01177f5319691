"""What the drivers in Python share: the same loop as drivers/driver.h, over the same orders."""

import argparse
import ctypes
import json
import mmap
import os
import resource
import signal
import sys
import time

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import workload  # noqa: E402 (the folder above is not a package)

_PR_SET_PDEATHSIG = 1


class Failure(Exception):
    """Ends the driver; its text is what the runner shows."""


class Contestant:
    """One side of one contestant; the methods are those of drivers/driver.h."""

    def __init__(self, options):
        self.prefill = options.role == "prefill"
        self.options = options
        self.memory = map_shared(options.cache_fd, options.bytes)
        self.address = self.memory.ctypes.data

    def hello(self):
        raise NotImplementedError

    def meet(self, other):
        raise NotImplementedError

    def prepare(self, block_bytes, source_ids, target_ids):
        """Not timed: what an application does once for a cache of this shape."""

    def round(self):
        """Returns the seconds spent on preparing the transfer, apart from moving it."""
        raise NotImplementedError


def map_shared(descriptor, size):
    """Shared memory as an array of bytes, every page present in this process."""
    array = np.frombuffer(mmap.mmap(descriptor, size), dtype=np.uint8)
    for page in range(0, size, mmap.PAGESIZE):
        array[page] = 0
    return array


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class _Loop:
    def __init__(self, contestant):
        self.contestant = contestant

    def meet(self, order):
        self.contestant.meet(order["hello"])
        return {}

    def prepare(self, order):
        count, self.block_bytes = order["blocks"], order["block_bytes"]
        self.seed = order["seed"]
        source = workload.permutation(count, workload.SOURCE_SEED)
        self.target = workload.permutation(count, workload.TARGET_SEED)
        memory = self.contestant.memory
        if self.contestant.prefill:
            workload.fill_blocks(np, memory, self.block_bytes, source, self.seed)
        else:
            memory[:] = 0
        self.contestant.prepare(self.block_bytes, source, self.target)
        return {"fingerprint": workload.fingerprint(self.block_bytes, source, self.target)}

    def rounds(self, order):
        seconds, preparing = [], 0.0
        cpu_before = cpu_seconds()
        for _ in range(order["count"]):
            start = time.monotonic()
            preparing += self.contestant.round()
            seconds.append(time.monotonic() - start)
        return {"seconds": seconds, "preparing_s": preparing,
                "cpu_s": cpu_seconds() - cpu_before}

    def check(self, _):
        wrong = workload.check_blocks(np, self.contestant.memory, self.block_bytes, self.target,
                                      self.seed)
        if wrong:
            raise Failure(wrong)
        return {}


def run(make):
    """The whole program; `make` takes the options and returns a Contestant."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Libraries that print must not garble the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=["prefill", "decode"], required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--cache-fd", type=int, required=True)
    parser.add_argument("--mode", default="")
    options = parser.parse_args()

    def say(line):
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    try:
        contestant = make(options)
        say({"hello": contestant.hello()})
        loop = _Loop(contestant)
        for line in sys.stdin:
            order = json.loads(line)
            say(getattr(loop, order["cmd"])(order))
    except Exception as error:  # pylint: disable=broad-except # whatever a peer raises
        say({"error": f"{type(error).__name__}: {error}" if not isinstance(error, Failure)
             else str(error)})
        os._exit(1)
    os._exit(0)  # libraries' threads may not end by themselves

"""What `measure.py` measures with `kvxfer bench`, and what is wanted of it on an H200. Pure.

A rate is judged as a share of what the same GPU does beside it, so that another GPU can be judged
too: one launch of the copy kernel for as many scattered blocks, and the driver's own copy of
contiguous memory, which moves 2,095 GB/s on an H200 where a plain kernel moves 1,930.
"""

import dataclasses
import statistics
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
_H200_COPY = 2095  # GB/s
_H200_KERNEL = 1930


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of `kvxfer bench`. ``way`` is how all bytes have to go, for example "tcp staged"."""

    name: str
    way: str
    flags: tuple[str, ...]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Share:
    """A rate is at least ``least`` of ``field``: of its own result, or "RUN/FIELD" of another's."""

    field: str
    label: str
    least: float


@dataclasses.dataclass(frozen=True)
class Goal:
    """A figure of a run: a time (its name ends with _us) of at most ``limit``, or a rate of at
    least that, or of at least the shares. With neither it is printed and not judged."""

    name: str
    run: str
    figure: str = "gb_per_s"
    block: int = 0  # the result with this block size; 0: there is one result
    limit: float | None = None
    shares: tuple[Share, ...] = ()
    pcie_5: bool = False  # holds for GPUs on PCIe 5 x16


@dataclasses.dataclass(frozen=True)
class Judgement:
    """``word`` is ok, FAIL, or "-" where nothing is judged."""

    word: str
    text: str


def _of_kernel(least: float) -> Share:
    return Share("device_scattered_gbps", "one kernel", least)


def _of_copy(gb_per_s: float, field: str = "device_copy_gbps") -> Share:
    """``gb_per_s`` on an H200."""
    return Share(field, "the driver's copy", round(gb_per_s / _H200_COPY, 2))


# Two processes on one GPU; blocks in random order.
_GPU = ("--memory", "cuda:0", "--backend", "cuda_ipc")
_MODEL = (*_GPU, "--model", "llama-3.1-8b")
# Below, waiting threads spin for longer than a round trip takes, or sleep at once.
_SPIN = {"KVXFER_SPIN_US": "1000"}
_SLEEP = {"KVXFER_SPIN_US": "0"}
_WAITING = (("spinning", _SPIN), ("asleep", _SLEEP))


def rates(quick: bool) -> tuple[list[Run], list[Goal]]:
    time = ("--duration", "50ms" if quick else "500ms")
    total = ("--total", "16M" if quick else "1G")
    tokens = ("--tokens", "128" if quick else "2048")
    wire = ("--total", "16M" if quick else "256M", "--block-sizes", "64K,1M", *time)
    eight = ("--threads", "8", *time)
    instances = ("--prefill-tp", "4", "--decode-tp", "2")
    many = ("--total", "4M" if quick else "64M")
    few = ("--block-sizes", "4K", *time)
    runs = [
        Run("4k", "cuda_ipc", (*_GPU, *many, *few)),
        Run("256", "cuda_ipc", (*_GPU, "--total", "1M", *few)),
        Run("large", "cuda_ipc", (*_GPU, "--block-sizes", "64K,256K,1M", *total, *time)),
        Run("alone", "cuda_ipc", (*_MODEL, *tokens, *time)),
        Run("eight", "cuda_ipc", (*_MODEL, *tokens, *eight)),
        Run("short", "cuda_ipc", (*_MODEL, "--tokens", "128", *eight)),
        Run("tp", "cuda_ipc", (*_MODEL, *tokens, *instances, *time)),
        # Those that are compared run right behind each other.
        Run("tcp", "tcp", ("--backend", "tcp", "--memory", "mapped", *wire)),
        Run("tcp-staged", "tcp staged", ("--backend", "tcp", "--memory", "cuda:0", *wire)),
        Run("shm-staged", "shm staged", ("--backend", "shm", "--memory", "cuda:0", *wire)),
    ]
    large = (_of_kernel(0.9), _of_copy(0.9 * _H200_KERNEL))
    host = (Share("tcp/gb_per_s", "host memory", 0.95),)
    goals = [
        Goal("16,384 x 4 KiB, until the end", "4k", "p50_us", limit=110),
        Goal("256 x 4 KiB, until the end", "256", "p50_us", limit=30),
        Goal("1 GiB in blocks of 64 KiB", "large", block=64 * KIB, shares=large),
        Goal("1 GiB in blocks of 256 KiB", "large", block=256 * KIB, shares=large),
        Goal("1 GiB in blocks of 1 MiB", "large", block=MIB, shares=large),
        Goal("llama-3.1-8b, 2,048 tokens", "alone", shares=(_of_copy(1300),)),
        Goal("the same, eight at once", "eight", shares=(_of_copy(1600),)),
        Goal("llama-3.1-8b, 128 tokens, eight at once", "short", shares=(_of_copy(800),)),
        Goal("llama-3.1-8b, TP 4 to TP 2 (8 KiB)", "tp", "write_blocks.gb_per_s",
             shares=(_of_copy(1200, "alone/device_copy_gbps"),)),
        Goal("tcp staged, blocks of 64 KiB", "tcp-staged", block=64 * KIB, shares=host),
        Goal("tcp staged, blocks of 1 MiB", "tcp-staged", block=MIB, shares=host),
        Goal("shm staged, blocks of 64 KiB", "shm-staged", block=64 * KIB, limit=25, pcie_5=True),
    ]  # fmt: skip
    return runs, goals


def _round_trips(quick: bool, by_write: tuple[float, float]) -> tuple[list[Run], list[Goal]]:
    """``by_write``: the limits where the answer is a write of GPU memory."""
    runs, goals = [], []
    count = ("-n", "50" if quick else "2000")
    limits = {"message": (35, 80), "write": by_write}
    for answer, (spinning, asleep) in limits.items():
        for (waits, environment), limit in zip(_WAITING, (spinning, asleep)):
            name = f"{answer}-{waits}"
            flags = (*_GPU, "--latency", "--answer", answer, *count)
            runs.append(Run(name, "cuda_ipc", flags, environment))
            what = "a message" if answer == "message" else "a 4 KiB write"
            goals.append(Goal(f"4 KiB, answered by {what}, {waits}", name, "p50_us", limit=limit))
    return runs, goals


def latency(quick: bool) -> tuple[list[Run], list[Goal]]:
    # Kernels of two processes take turns on a GPU: one from each in turn takes 353 us by itself.
    turns = 353
    runs, goals = _round_trips(quick, (turns + 30, turns + 30))
    flags = (*_GPU, "--block-sizes", "1M", "--total", "16M" if quick else "1G", "-n", "1")
    runs.append(Run("first", "cuda_ipc", flags))
    goals.append(
        Goal("the first transfer, of 1 GiB that is new", "first", "first_transfer_us", limit=3000)
    )
    return runs, goals


def mps(quick: bool) -> tuple[list[Run], list[Goal]]:
    """Under MPS kernels of two processes run at once."""
    return _round_trips(quick, (35, 80))


def host(quick: bool) -> tuple[list[Run], list[Goal]]:
    """Host memory, for machines with more CPUs than CI has."""
    runs, goals = [], []
    flags = ("--memory", "mapped", "--block-sizes", "64K", "--total", "16M" if quick else "256M",
             "--duration", "50ms" if quick else "500ms")  # fmt: skip
    for backend in ("shm", "tcp"):
        for peers, words in (("1", "one peer"), ("8", "eight peers")):
            name = f"{backend}-{peers}"
            runs.append(Run(name, backend, ("--backend", backend, *flags, "--peers", peers)))
            goals.append(Goal(f"{backend}, host memory, 64 KiB, {words}", name))
    return runs, goals


SECTIONS = {"rates": rates, "latency": latency, "mps": mps, "host": host}

# One turn: by the name of a run what it printed, or why it printed nothing.
Turn = dict[str, Any]


class NotMeasuredError(Exception):
    """The text says why."""


def _result(turn: Turn, run: str, block: int) -> dict:
    document = turn.get(run, "it did not run")
    if isinstance(document, str):
        raise NotMeasuredError(document)
    for result in document["results"]:
        if block in (0, result.get("block_bytes")):
            # A run between two instances tells its backend once.
            return {"path": document.get("backend", ""), **result}
    raise NotMeasuredError(f"{run} has no blocks of {block} bytes")


def _number(result: dict, field: str) -> float:
    value: Any = result
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, (int, float)):
        raise NotMeasuredError(f"there is no {field}")
    return float(value)


def _way(path: str) -> str:
    return path.split(":")[0].removesuffix(" staged") + (" staged" if "staged" in path else "")


def _share(turn: Turn, goal: Goal, share: Share) -> tuple[float, float]:
    """The ratio, and what it is a ratio to."""
    run, _, field = share.field.rpartition("/")
    other = _number(_result(turn, run or goal.run, goal.block), field)
    return _number(_result(turn, goal.run, goal.block), goal.figure) / other, other


def _amount(value: float, figure: str) -> str:
    return f"{value:,.1f} us" if figure.endswith("_us") else f"{value:,.1f} GB/s"


def _check_way(turn: Turn, goal: Goal, way: str) -> str:
    """What is worth saying about the path. NotMeasuredError if it is another one."""
    path = _result(turn, goal.run, goal.block)["path"]
    if _way(path) != way:
        raise NotMeasuredError(f"went by way of {path}, not {way}")
    return f"; without the copy kernel: {path}" if "driver copies" in path else ""


def judge(goal: Goal, way: str, turns: list[Turn], judged: bool) -> Judgement:
    """By the medians over the turns. ``judged``: whether a goal that is missed is a failure."""
    try:
        remarks = [_check_way(turn, goal, way) for turn in turns]
        values = [_number(_result(turn, goal.run, goal.block), goal.figure) for turn in turns]
        shares = [(s, [_share(turn, goal, s) for turn in turns]) for s in goal.shares]
    except NotMeasuredError as error:
        return Judgement("FAIL", f"not measured: {error}")
    value = statistics.median(values)
    parts, met = [_amount(value, goal.figure)], []
    if goal.limit is not None:
        at_most = goal.figure.endswith("_us")
        met.append(value <= goal.limit if at_most else value >= goal.limit)
        parts[0] += f" (goal: {'at most' if at_most else 'at least'} {goal.limit:g})"
    for share, pairs in shares:
        ratio = statistics.median(ratio for ratio, _ in pairs)
        other = statistics.median(other for _, other in pairs)
        met.append(ratio >= share.least)
        parts.append(f"{ratio:.2f} of {share.label}'s {other:,.1f} (goal: {share.least:g})")
    text = ", ".join(parts) + remarks[0]
    if not judged or not met:
        return Judgement("-", f"{text}; not judged")
    return Judgement("ok" if all(met) else "FAIL", text)

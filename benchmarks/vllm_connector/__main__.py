"""Compares KvxferConnector with vLLM's NixlConnector: the time of a load in the decode engine, from when
its worker is asked for it to when the engine knows that it is there.

    python benchmarks/vllm_connector [--turns N] [--requests N] [--out FILE.json]

A pair of real engines of each (vLLM's CPU build, a tiny Llama), up side by side; requests go to them in
turn. Each turn starts the decode engines anew, so that it has a first request. Run it with the Python of
tests/python/environment, kvxfer in PYTHONPATH, on a machine that does nothing else; 10 GB. Prints
Markdown. Exit status: 0 done, 1 a load failed or an engine did.
"""

import argparse
import dataclasses
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HARNESS = HERE.parent.parent / "tests" / "python" / "vllm"
sys.path[:0] = [str(HERE), str(HARNESS)]

# pylint: disable=wrong-import-position
from engine import Request  # noqa: E402
from engine_pair import KVXFER, NIXL, Connector, Pair  # noqa: E402
from tiny_model import VOCABULARY, write_tiny_model  # noqa: E402

_LENGTHS = (100, 300, 500, 900)
_FIRST = 300  # tokens


@dataclasses.dataclass
class Contestant:
    name: str
    connector: Connector
    loads: Path
    pair: Pair | None = None
    first: list[float] = dataclasses.field(default_factory=list)
    later: dict[int, list[float]] = dataclasses.field(default_factory=dict)

    def load(self, prompt: Sequence[int]) -> float:
        """Seconds, of one request; what else it takes is not measured."""
        assert self.pair is not None
        self.loads.write_text("")
        (prefilled,) = self.pair.prefill.generate(
            Request(list(prompt), 1, {"do_remote_decode": True, "do_remote_prefill": False})
        )
        self.pair.decode.generate(Request(list(prompt), 1, prefilled.transfer))
        lines = [json.loads(line) for line in self.loads.read_text().splitlines()]
        if len(lines) != 1 or lines[0]["failed"]:
            raise RuntimeError(f"{self.name}: not one load that went well: {lines}")
        return float(lines[0]["s"])


def _timed(connector: Connector, name: str, loads: Path, **extra: Any) -> Connector:
    environment = dict(connector.environment) | {
        "KVXFER_TEST_TIMED_LOADS": str(loads),
    }
    return dataclasses.replace(
        connector,
        name=name,
        module="timed",
        extra=dict(connector.extra) | extra,
        environment=environment,
    )


def _contestants(folder: Path, threads: int | None) -> list[Contestant]:
    loads = {name: folder / f"{name}.jsonl" for name in ("kvxfer", "nixl")}
    options = {} if threads is None else {"num_threads": threads}
    return [
        Contestant("kvxfer", _timed(KVXFER, "TimedKvxfer", loads["kvxfer"]), loads["kvxfer"]),
        Contestant("nixl", _timed(NIXL, "TimedNixl", loads["nixl"], **options), loads["nixl"]),
    ]


def _prompt(randomness: random.Random, length: int) -> list[int]:
    return [randomness.randrange(2, VOCABULARY) for _ in range(length)]


def _turn(contestants: list[Contestant], requests: int, randomness: random.Random) -> None:
    for one in contestants:
        one.first.append(one.load(_prompt(randomness, _FIRST)))
    for number in range(requests):
        for length in _LENGTHS:
            prompt = _prompt(randomness, length)
            order = contestants if number % 2 == 0 else contestants[::-1]
            for one in order:
                one.later.setdefault(length, []).append(one.load(prompt))


def _milliseconds(values: list[float]) -> str:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return f"{statistics.median(ordered) * 1e3:.2f} / {p99 * 1e3:.2f}"


def _row(what: str, ours: list[float], theirs: list[float]) -> str:
    ratio = statistics.median(ours) / statistics.median(theirs)
    return f"| {what} | {_milliseconds(ours)} | {_milliseconds(theirs)} | {ratio:.2f} |"


def _report(contestants: list[Contestant]) -> str:
    ours, theirs = contestants
    rows = [
        "| ms, p50 / p99 | kvxfer | NixlConnector | ratio of medians |",
        "|---|---:|---:|---:|",
        _row(f"first request, {_FIRST} tokens", ours.first, theirs.first),
    ]
    rows += [_row(f"{n} tokens", ours.later[n], theirs.later[n]) for n in _LENGTHS]
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/vllm_connector")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=25, help="of each length and turn")
    parser.add_argument("--nixl-threads", type=int, help="default: as NixlConnector sets it")
    parser.add_argument("--out", type=Path, help="every time measured, as JSON")
    given = parser.parse_args()
    randomness = random.Random(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_tiny_model(folder / "model", 1)
        contestants = _contestants(folder, given.nixl_threads)
        try:
            for one in contestants:
                (folder / one.name).mkdir()
                one.pair = Pair.start(folder / "model", folder / one.name, one.connector)
            for turn in range(given.turns):
                for one in contestants:
                    assert one.pair is not None
                    if turn:
                        one.pair.decode.restart()
                    for engine in one.pair.engines:
                        engine.wait_until_up()
                    one.pair.prefill.serve()
                _turn(contestants, given.requests, randomness)
        finally:
            for one in contestants:
                if one.pair is not None:
                    one.pair.close()
    print(_report(contestants))
    if given.out:
        given.out.write_text(
            json.dumps({c.name: {"first": c.first, "later": c.later} for c in contestants})
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

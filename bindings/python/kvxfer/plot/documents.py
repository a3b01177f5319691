"""Reads the documents that are drawn: of ``kvxfer bench --json`` and of ``benchmarks/compare``.

Pure: no matplotlib. What is wrong with a document is an InvalidArgument that names the file, the
field and what was expected there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvxfer._errors import InvalidArgument
from kvxfer.plot.node import Node, shown

_WRITERS = "a document of kvxfer bench --json or of benchmarks/compare"
_COMPARE_SCHEMA = 1
COMPARE_KINDS = ("kvxfer", "raw", "peer", "reference")


@dataclass(frozen=True)
class Transfer:
    """One of a timeline; times in microseconds since the start of its run."""

    peer: int
    thread: int
    due: float
    posted: float
    first_slice: float
    ended: float
    notified: float | None


@dataclass(frozen=True)
class BenchResult:
    """What one configuration of ``kvxfer bench`` measured."""

    where: str  # in the document
    workload: str
    block_bytes: int
    gb_per_s: float
    percentiles: dict[float, float]  # microseconds by part of the requests
    cdf: list[tuple[float, float]]  # microseconds, part of the requests
    open_loop: bool
    timeline: list[Transfer]
    # What tells it from other results, but for the size of its blocks: name of a trait, and how it
    # is written. Empty: what is usual.
    traits: dict[str, str]


@dataclass(frozen=True)
class CompareRow:
    """One contestant of ``benchmarks/compare`` at one case."""

    title: str  # of the group in which it was measured
    contestant: str
    kind: str
    block_bytes: int
    round_trip: bool
    gb_per_s: float
    p50_us: float
    p99_us: float


@dataclass(frozen=True)
class Document:
    """One file: it has results or rows, by who wrote it."""

    path: str
    machine: str
    made: str  # version and date
    results: list[BenchResult] = field(default_factory=list)
    rows: list[CompareRow] = field(default_factory=list)

    @property
    def name(self) -> str:
        return Path(self.path).stem


def sources(documents: Sequence[Document]) -> list[str]:
    """On what, with what and when it was measured: a line for each that differs."""
    return list(dict.fromkeys(f"{one.machine} · {one.made}" for one in documents))


def tell_apart(traits: Sequence[dict[str, str]]) -> tuple[str, list[str]]:
    """What all have in common, and what each has beside it. All have the same traits."""
    names = [name for name in traits[0] if name != "file"]
    # The file's name tells apart only what nothing else does.
    if len({tuple(one[name] for name in names) for one in traits}) < len(traits):
        names.append("file")
    same = [name for name in names if len({one[name] for one in traits}) == 1]
    common = ", ".join(traits[0][name] for name in same if traits[0][name])
    own = [
        ", ".join(one[name] for name in names if name not in same and one[name])
        for one in traits
    ]
    return common, own


def load(path: str) -> Document:
    """One document, by its content. OSError: it cannot be read."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{path}: is no JSON ({error}); expected {_WRITERS}") from error
    root = Node(path, "", value)
    if not isinstance(value, dict):
        raise root.error(f"is {shown(value)}", _WRITERS)
    if "schema" in value or "ratios" in value:
        return _compare(path, root)
    if "mode" in value:
        raise root.at("mode", "").error(
            f"is {shown(value['mode'])}: bench --prefill-tp has no plots", _WRITERS
        )
    if "machine" not in value or "results" not in value:
        missing = "machine" if "machine" not in value else "results"
        raise InvalidArgument(f"{path}: {missing} is missing; expected {_WRITERS}")
    return _bench(path, root)


def _machine(node: Node) -> str:
    cpus = node.whole("cpus")
    kernel = node.text("kernel").split("-")[0]
    virtual = " (virtual)" if node.has("virtual") and node.flag("virtual") else ""
    return f"{node.text('cpu')}, {cpus} CPU{'s' if cpus != 1 else ''}{virtual}, Linux {kernel}"


def _bench(path: str, root: Node) -> Document:
    # A document without them is of a program that is older than this package.
    made = f"kvxfer {root.text('version')}, {root.text('date')}"
    return Document(
        path=path,
        machine=_machine(root.object("machine")),
        made=made,
        results=[_result(node) for node in root.objects("results")],
    )


def _traits(node: Node) -> dict[str, str]:
    peers, threads = node.whole("peers"), node.whole("threads")
    workload = node.text("workload")
    load = ""
    if node.has("target_requests_per_s"):
        load = f"{node.number('target_requests_per_s'):.4g} requests/s"
    memory = node.text("memory")
    if node.has("memory_target") and node.text("memory_target") != memory:
        memory += " and " + node.text("memory_target")
    into = "into one" if node.has("scheme") and node.text("scheme") == "manytoone" else "from one"
    return {
        "backend": node.text("backend"),
        "op": "round trip" if workload == "latency" else node.text("op"),
        "memory": memory + " memory",
        "model": f"{node.text('model')} tp {node.whole('tp')}" if node.has("model") else "",
        "tokens": f"{node.whole('tokens')} tokens" if node.has("tokens") else "",
        "trace": "trace" if workload == "trace" else "",
        "peers": f"{peers} peers {into}" if peers > 1 else "",
        "threads": f"{threads} threads" if threads > 1 else "",
        "directions": "both ways" if node.flag("bidirectional") else "",
        "load": load,
    }


def _result(node: Node) -> BenchResult:
    percentiles = {
        part: node.number(name)
        for part, name in ((0.5, "p50_us"), (0.9, "p90_us"), (0.99, "p99_us"))
    }
    return BenchResult(
        where=node.where,
        workload=node.text("workload"),
        block_bytes=node.whole("block_bytes", least=1),
        gb_per_s=node.number("gb_per_s"),
        percentiles=percentiles,
        cdf=node.points("latency_cdf"),
        open_loop=node.has("target_requests_per_s") or node.text("workload") == "trace",
        timeline=[_transfer(item) for item in node.objects("timeline")]
        if node.has("timeline")
        else [],
        traits=_traits(node),
    )


def _transfer(node: Node) -> Transfer:
    return Transfer(
        peer=node.whole("peer"),
        thread=node.whole("thread"),
        due=node.number("due_us"),
        posted=node.number("posted_us"),
        first_slice=node.number("first_slice_us"),
        ended=node.number("ended_us"),
        notified=node.number("notified_us") if node.has("notified_us") else None,
    )


def _compare(path: str, root: Node) -> Document:
    schema = root.whole("schema")
    if schema != _COMPARE_SCHEMA:
        raise root.at("schema", "").error(f"is {schema}", f"{_COMPARE_SCHEMA}")
    if not root.flag("complete"):
        raise root.at("complete", "").error("is false", "the document of a whole run")
    titles = root.object("titles").value if root.has("titles") else {}
    return Document(
        path=path,
        machine=_machine(root.object("machine")),
        made=f"kvxfer {root.object('versions').text('kvxfer')}, {root.text('date')}",
        rows=[_row(node, titles) for node in root.objects("results")],
    )


def _row(node: Node, titles: dict[str, Any]) -> CompareRow:
    group, kind = node.text("group"), node.text("kind")
    if kind not in COMPARE_KINDS:
        raise node.at("kind", "").error(f"is {shown(kind)}", "one of " + ", ".join(COMPARE_KINDS))
    return CompareRow(
        title=str(titles.get(group, group)),
        contestant=node.text("contestant"),
        kind=kind,
        block_bytes=node.whole("block_bytes", least=1),
        round_trip=node.whole("blocks") == 1,
        gb_per_s=node.number("gb_per_s_without_preparing"),
        p50_us=node.number("p50_us"),
        p99_us=node.number("p99_us"),
    )
